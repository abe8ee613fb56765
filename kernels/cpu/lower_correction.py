"""A coarse product, and the share of 32 inputs that was left out of it: what guesses gates and logits in mode turbo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.turbo import EXTRA_INPUTS

from .activation_format import FLOATS, RECORDS
from .linear import Matrix, linear
from .pick_inputs import PICKED_BYTES, pick_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.turbo import Shortlist, Sketch

    from .activation_format import Form
    from .lowering import Lowering
    from .operation import Kind, Rows


def add_corrected(
    lowering: Lowering,
    name: str,
    coarse: Matrix,
    guess: Sketch | Shortlist,
    rows: int,
    *,
    sources: Mapping[Form, Rows],
    target: Rows,
    order: npt.NDArray[np.int64] | None = None,
    kind: Kind,
) -> None:
    """target = coarse @ x + extra @ (the inputs that `guess` names); `order`: of the extra's `rows`, as in `coarse`.

    `sources` is x as records and in float32.
    """
    weights = lowering.environment.weights
    extra = Tensor(f"{name} extra", QuantType.Q8_0, (rows, EXTRA_INPUTS), guess.extra)
    extras = weights.matrix(f"{name} extra inputs", [extra], order)
    numbers = weights.blob(f"{name} extra numbers", lambda: guess.inputs.astype(np.int32).view(np.uint8))
    picked = lowering.local("picked inputs", PICKED_BYTES)
    common = {"count": lowering.count, "kind": kind, "fixed": True}  # no barrier is between them with one row
    lowering.add(
        linear(coarse, source=sources[RECORDS], target=target, barrier=not lowering.single, **common),  # type: ignore[arg-type]
        pick_inputs(
            source=sources[FLOATS],
            numbers=numbers,
            target=picked,
            share=lowering.everyone,
            kind=kind,
            barrier=not lowering.single,
        ),
        linear(extras, source=picked, target=target, residual=target, **common),  # type: ignore[arg-type]
    )
