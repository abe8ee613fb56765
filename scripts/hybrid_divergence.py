"""How far a real model split over card and CPU is from float32, beside both executors by themselves."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.executor import GpuExecutor
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.gpu_device import GpuDevice
from localllm.kernels.hybrid.placement import uniform_placement
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of
from localllm.models import load_spec
from localllm.profiles.text import TEXT
from localllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec

LARGE_VOCABULARY = 100_000  # whose logits in float64 take most of the time, so fewer tokens must do
KINDS = {"CPU": None, "card": None, "a quarter on the card": 0.25, "half on the card": 0.5}  # which share is hot


def divergences(
    say: Callable[..., None], paths: Sequence[str], text: Path | None, threads: int | None, most: int
) -> None:
    """Rows of `say` for every model: over `most` tokens of a text, one by one and in steps of 32 rows.

    Nothing is timed, so all executors run side by side, each in a process of its own, and beside the reference.
    """
    words = TEXT if text is None else text.read_text()
    each = max(1, (threads or len(KINDS)) // len(KINDS))
    with ProcessPoolExecutor(len(KINDS), get_context("spawn")) as pool:
        cases = [(path, rows, kind) for path in paths for rows in (1, 32) for kind in KINDS]
        found = {case: pool.submit(_logits, *case, words, each, most) for case in cases}
        for path in paths:
            reference = _log(_logits(path, 0, "reference", words, threads, most))
            for rows in (1, 32):
                _tell(say, path, rows, reference, {kind: found.pop((path, rows, kind)) for kind in KINDS})


def _logits(path: str, rows: int, kind: str, words: str, threads: int | None, most: int) -> npt.NDArray[np.float32]:
    """Logits of every token of a text, in steps of `rows` rows."""
    with open_gguf(Path(path)) as file:
        spec, options = load_spec(file), ExecutorOptions(max_rows=32, threads=threads)
        wanted = most if spec.vocabulary_size < LARGE_VOCABULARY else max(most // 4, min(most, 48))
        tokens = np.array(Tokenizer.from_gguf(file).encode(words)[:wanted])
        if kind == "reference":
            return logits_of(ReferenceExecutor(spec, options), tokens)
        executor = _open(spec, kind, options)
        found = logits_of(executor, tokens, kv_type="f16", chunk=rows)
        executor.close()
        return found


def _open(spec: ModelSpec, kind: str, options: ExecutorOptions) -> Executor:
    share = KINDS[kind]
    if share is not None:
        return HybridExecutor(spec, uniform_placement(spec, share), GpuDevice, options)
    return CpuExecutor(spec, options) if kind == "CPU" else GpuExecutor(spec, options)


def _tell(
    say: Callable[..., None],
    path: str,
    rows: int,
    reference: npt.NDArray[np.float64],
    kinds: dict[str, Future[npt.NDArray[np.float32]]],
) -> None:
    pure: list[npt.NDArray[np.float64]] = []
    for kind, future in kinds.items():
        found = _log(future.result())
        losses = (np.exp(reference) * (reference - found)).sum(1)
        loss, more = float(losses.mean()), ""
        if KINDS[kind] is None:
            pure.append(losses)
        else:
            larger = losses - max(pure, key=lambda each: float(each.mean()))
            more = f"; {larger.mean():+.5f} +- {larger.std() / len(larger) ** 0.5:.5f} of the larger of both"
        agree = float((found.argmax(1) == reference.argmax(1)).mean())
        what = f"KL, {Path(path).stem}, {rows} rows, {kind}"
        say(what, f"{loss:.5f} nats", f"top-1 {agree:.1%} of {len(reference)}{more}", loss=loss, agree=agree)


def _log(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found
