"""Executors that say what a test wants, and ways to run a request to its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from integer_executor import IntegerExecutor

from localllm.completion import Completion, collect
from localllm.engine import Engine, Request
from localllm.kernels.step import Step
from localllm.sampling import SamplingParameters

Logits = npt.NDArray[np.float32]


def one_hot(token: int, size: int = 300) -> Logits:
    """Logits that leave no doubt."""
    logits = np.zeros(size, np.float32)
    logits[token] = 30.0
    return logits


def saying(tokens: Sequence[int], prompt_length: int, **options: Any) -> IntegerExecutor:
    """An executor that answers a prompt of `prompt_length` tokens with `tokens`, over and over."""

    def script(content: int, token: int, position: int) -> Logits:
        return one_hot(tokens[(position + 1 - prompt_length) % len(tokens)])

    return IntegerExecutor(script=script, **options)


class GatedExecutor(IntegerExecutor):
    """Runs a step only when it is let to: `release(n)` lets n more run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._allowed = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def release(self, steps: int = 1) -> None:
        self._allowed.release(steps)

    def forward(self, step: Step) -> Logits:
        self.entered.release()
        assert self._allowed.acquire(timeout=30), "nobody let the step run"
        return super().forward(step)


def complete(engine: Engine, ids: Sequence[int], **parameters: Any) -> Completion:
    """One request, run to its end."""
    return collect(engine.submit(Request(ids, SamplingParameters(**parameters))))
