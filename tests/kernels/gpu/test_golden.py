"""Logits of the golden files: all rows at once, and the last ones one by one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.models import load_spec

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

_OWN = Path(__file__).resolve().parents[2] / "data" / "models"
_SHARED = os.environ.get("LOCALLLM_FIXTURES")
_ON_CARD = torch.cuda.is_available()
_BRIEFLY = (  # what the interpreter is given: every kind of block, and the packed forms
    "cohere2",
    "command_r_plus",
    "deepseek2",
    "gpt2",
    "gpt_oss",
    "hunyuan_dense",
    "mix_q4_k_m_like",
    "olmoe",
    "powerinfer_falcon",
    "qwen2moe",
    "relu2_q8_0",
    "relu_moe_q4_0",
)


def _models() -> list[Path]:
    """On a card all golden files that there are, through the interpreter a choice."""
    shared = (
        [] if _SHARED is None else [p for k in ("arch", "quant") for p in Path(_SHARED, "golden", k).glob("*.gguf")]
    )
    own = sorted(_OWN.glob("*.gguf"))
    return own + sorted(shared) if _ON_CARD else [path for path in own if path.stem in _BRIEFLY]


def _golden(path: Path) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.floating]]:
    with np.load(path.with_suffix(".npz")) as data:
        return data["tokens"], data["logits" if "logits" in data else "logits_exact"]


@pytest.mark.parametrize("path", _models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_exact_arithmetic_gives_the_exact_logits(path: Path) -> None:
    from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions

    tokens, logits = _golden(path)
    rows, singles = (len(tokens) - 3, 3) if _ON_CARD else (5, 1)
    options = GpuOptions(arithmetic="float32", short=torch.float32)
    executor = GpuExecutor(load_spec(open_gguf(path)), ExecutorOptions(max_rows=64), options)
    turned = any(layer.feed_forward.down_transposed for layer in executor.spec.layers)
    tolerance = 2e-3 if turned else 1e-3  # matrices stored a row a neuron are kept in half precision
    executor.allocate_kv(pages_for(executor.layout, len(tokens)), "f32")
    found = executor.forward(simple_step(executor.layout, tokens[:rows])).copy()
    np.testing.assert_allclose(found, logits[:rows], rtol=0, atol=tolerance)
    for place in range(rows, rows + singles):
        found = executor.forward(simple_step(executor.layout, tokens[place : place + 1], place))
        np.testing.assert_allclose(found, logits[place : place + 1], rtol=0, atol=tolerance)
    executor.close()


@pytest.mark.skipif(not _ON_CARD, reason="needs a GPU: its own arithmetic is what this is about")
@pytest.mark.parametrize("path", _models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_fast_arithmetic_stays_close(path: Path) -> None:
    from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions

    tokens, logits = _golden(path)
    executor = GpuExecutor(load_spec(open_gguf(path)), ExecutorOptions(max_rows=64), GpuOptions(arithmetic="int8"))
    executor.allocate_kv(pages_for(executor.layout, len(tokens)), "f16")
    first, few_rows = len(tokens) - 7, 4  # more rows than are read as fragments, then four that are, then one by one
    many = executor.forward(simple_step(executor.layout, tokens[:first])).copy()
    last = first + few_rows
    few = [executor.forward(simple_step(executor.layout, tokens[first:last], first)).copy()]
    for place in range(last, len(tokens)):
        few.append(executor.forward(simple_step(executor.layout, tokens[place : place + 1], place)).copy())
    executor.close()
    assert _typical_error(many, logits[:first]) < 0.01
    assert _typical_error(np.concatenate(few), logits[first:]) < 0.05


def _typical_error(found: npt.NDArray[np.float32], exact: npt.NDArray[np.floating]) -> float:
    """Root mean square of a row's error in units of the logits' deviation; the median row (a router may flip)."""
    return float(np.median(np.sqrt(((found - exact) ** 2).mean(axis=1)))) / float(exact.std())
