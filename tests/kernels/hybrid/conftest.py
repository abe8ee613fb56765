"""A card where there is one, Triton's interpreter elsewhere."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
