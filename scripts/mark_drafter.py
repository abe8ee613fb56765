"""Write into a drafter's file for which model it was made, where it does not say so yet.

    python scripts/mark_drafter.py MODEL.gguf DRAFTER.gguf

The trainers do it themselves. Any quantisation of the model will do.
"""

from __future__ import annotations

import argparse
from typing import Any

from localllm.errors import LocalLLMError
from localllm.gguf_io import open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.speculation.heads import check_weights
from localllm.speculation.made_for import FINGERPRINT, check_made_for, made_for


def mark(model_path: str, drafter_path: str) -> None:
    """Write the drafter anew; nothing else in it changes. ConfigurationError if it names another model."""
    with open_gguf(model_path) as model, open_gguf(drafter_path) as drafter:
        check_weights(drafter)
        if FINGERPRINT in drafter.metadata:
            check_made_for(drafter, model)
        metadata: dict[str, Any] = {key: drafter.metadata.get_raw(key) for key in drafter.metadata}
        metadata.update(made_for(model))
        tensors = {
            name: (tensor.quant_type, tensor.shape, bytes(tensor.data)) for name, tensor in drafter.tensors.items()
        }
    write_gguf(drafter_path, metadata, tensors)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("drafter")
    options = parser.parse_args()
    try:
        mark(options.model, options.drafter)
    except LocalLLMError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
