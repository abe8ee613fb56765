"""What a turbo costs on a text: perplexity, and how far its predictions are from those of the exact model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import logits_of
from localllm.losses import cost_of

from .record import TurboCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.turbo import Turbo

    Floats = npt.NDArray[np.float32]

_ROWS_AT_ONCE = 64


def logits_in(spec: ModelSpec, ids: Sequence[int], mode: Mode, turbo: Turbo | None, threads: int | None) -> Floats:
    """Logits [len(ids), vocabulary] of a fresh sequence on the CPU."""
    executor = CpuExecutor(spec, ExecutorOptions(threads=threads, mode=mode, turbo=turbo))
    try:
        return logits_of(executor, ids)
    finally:
        executor.close()


def cost_between(exact: Floats, changed: Floats, ids: Sequence[int]) -> TurboCost:
    """Compare logits [len(ids), vocabulary]; the last row predicts nothing that is known."""
    targets = np.asarray(ids[1:])
    losses, divergences = [np.zeros(len(targets)) for _ in range(2)], np.zeros(len(targets))
    same = np.zeros(len(targets), bool)
    for start in range(0, len(targets), _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, len(targets)))
        before, after = (_log_shares(logits[rows]) for logits in (exact, changed))
        places = np.arange(len(before)), targets[rows]
        losses[0][rows], losses[1][rows] = -before[places], -after[places]
        divergences[rows] = (np.exp(before) * (before - after)).sum(axis=1, dtype=np.float64)
        same[rows] = before.argmax(axis=1) == after.argmax(axis=1)
    cost = cost_of(losses[1], losses[0])
    return TurboCost(
        tokens=len(targets),
        exact=float(np.exp(losses[0].mean())),
        turbo=float(np.exp(losses[1].mean())),
        percent=cost.percent,
        error_percent=cost.error_percent,
        divergence=float(divergences.mean()),
        same_best=float(same.mean()),
    )


def _log_shares(logits: Floats) -> Floats:
    values: Floats = logits - logits.max(axis=1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return values
