"""A trained layer from a file, against the formula and beside a model."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm import LLM
from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, dequantize, open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.kernels.cpu.compile import KernelCompiler
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.spec import ModelSpec
from localllm.models import load_spec
from localllm.speculation import NOTHING, trained_layer
from localllm.speculation.trained_layer import TrainedLayer, TrainedLayerDrafter, load_trained_layer

MODEL = Path(__file__).parents[2] / "data" / "models" / "llama_gqa_tied_f16.gguf"
HEADS, KV_HEADS, INNER, EPS, BASE, WINDOW = 4, 2, 24, 1e-5, 1000.0, 6
Floats = npt.NDArray[np.float32]


def sizes() -> tuple[int, int]:
    """(tokens, hidden) of the model."""
    rows, columns = open_gguf(MODEL).tensors["token_embd.weight"].shape
    return rows, columns


def weights(taps: int) -> dict[str, Floats]:
    tokens, hidden = sizes()
    random, kv = np.random.default_rng(1), hidden * KV_HEADS // HEADS
    shapes = {
        "speculator.first": (hidden, (2 + taps) * hidden),
        "speculator.again": (hidden, 2 * hidden),
        "token_embd": (tokens // 2, hidden),
        "blk.0.attn_q": (hidden, hidden),
        "blk.0.attn_k": (kv, hidden),
        "blk.0.attn_v": (kv, hidden),
        "blk.0.attn_output": (hidden, hidden),
        "blk.0.ffn_gate": (INNER, hidden),
        "blk.0.ffn_up": (INNER, hidden),
        "blk.0.ffn_down": (hidden, INNER),
    }
    made = {name: random.normal(0, 1.5 * shape[1] ** -0.5, shape) for name, shape in shapes.items()}
    made |= {name: random.uniform(0.5, 1.5, hidden) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    return {f"{name}.weight": values.astype(np.float32) for name, values in made.items()}


def save(path: Path, taps: tuple[int, ...] = (), changed: dict[str, Floats] | None = None, **metadata: Any) -> Path:
    tokens, hidden = sizes()
    prefix = "localllm-speculator."
    values: dict[str, Any] = {
        "general.architecture": "localllm-speculator",
        "speculator.vocabulary": np.arange(tokens // 2, dtype=np.int32) * 2,
        "speculator.taps": np.array(taps, np.int32),
        "speculator.window": WINDOW,
        prefix + "block_count": 1,
        prefix + "context_length": 1000,
        prefix + "embedding_length": hidden,
        prefix + "feed_forward_length": INNER,
        prefix + "attention.head_count": HEADS,
        prefix + "attention.head_count_kv": KV_HEADS,
        prefix + "attention.layer_norm_rms_epsilon": EPS,
        prefix + "rope.freq_base": BASE,
    }
    tensors = weights(len(taps)) | (changed or {})
    write_gguf(
        path,
        values | metadata,
        {name: (QuantType.F32, each.shape, each) for name, each in tensors.items() if each.size},
    )
    return path


def load(path: Path) -> tuple[ModelSpec, TrainedLayer]:
    spec = load_spec(open_gguf(MODEL))
    with open_gguf(path) as file:
        return spec, load_trained_layer(file, spec, KernelCompiler(choose_isa()))


class Formula:
    """The layer, row by row, in float64."""

    def __init__(self, tensors: dict[str, Floats], table: Floats) -> None:
        self.w = {name.removesuffix(".weight"): values.astype(np.float64) for name, values in tensors.items()}
        self.table = table.astype(np.float64)
        self.seen: list[tuple[Any, Any]] = []

    @staticmethod
    def unit(x: Any, eps: float = 1e-6) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)

    def turned(self, x: Any) -> Any:
        """[heads, dim] at the next place."""
        pairs = x.reshape(len(x), -1, 2)
        angles = len(self.seen) * BASE ** (-np.arange(pairs.shape[1]) / pairs.shape[1])
        return ((pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)).view(np.float64).reshape(x.shape)

    def row(self, entrance: str, token: int, vectors: Any) -> Any:
        """The state behind a row, which stays."""
        w, unit = self.w, self.unit
        joined = np.concatenate([unit(self.table[token]), unit(vectors.reshape(-1, self.table.shape[1])).ravel()])
        x = w[entrance] @ joined
        y = unit(x, EPS) * w["blk.0.attn_norm"]
        query, key, value = (
            (w[f"blk.0.attn_{part}"] @ y).reshape(heads, -1)
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        query, key = self.turned(query), self.turned(key)
        self.seen.append((key, value))
        near = self.seen[-WINDOW:]
        out = []
        for head in range(HEADS):
            group = head * KV_HEADS // HEADS
            scores = np.array([own[group] @ query[head] for own, _ in near]) * len(query[head]) ** -0.5
            chances = np.exp(scores - scores.max())
            out.append(chances @ np.array([own[group] for _, own in near]) / chances.sum())
        x = x + w["blk.0.attn_output"] @ np.concatenate(out)
        y = unit(x, EPS) * w["blk.0.ffn_norm"]
        gate = w["blk.0.ffn_gate"] @ y
        x = x + w["blk.0.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up"] @ y))
        return unit(x, EPS) * w["output_norm"]

    def clear_line(self, state: Any, most: int) -> list[int]:
        """What is guessed behind a state, up to the first place where rounding might decide; these rows do not stay."""
        line: list[int] = []
        kept = list(self.seen)
        while len(line) < most:
            logits = self.w["token_embd"] @ state
            second, first = np.argsort(logits)[-2:]
            if logits[first] - logits[second] < 0.02 * np.abs(logits).max():
                break
            line.append(2 * int(first))
            state = self.row("speculator.again", line[-1], state)
        self.seen = kept
        return line


@pytest.mark.parametrize("taps", [(), (0,)])
def test_guesses_are_those_of_the_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taps: tuple[int, ...]
) -> None:
    monkeypatch.setattr(trained_layer, "_LEAST_CHANCE", 0.0)
    spec, layer = load(save(tmp_path / "layer.gguf", taps))
    assert layer.taps == taps
    table = np.asarray(dequantize(spec.embed.table), np.float32)
    random, drafter = np.random.default_rng(3), TrainedLayerDrafter(layer)
    text = random.integers(0, spec.vocabulary_size, 9).tolist()
    vectors = random.normal(0, 2, (len(text) - 1, (1 + len(taps)) * spec.hidden_size)).astype(np.float32)
    compared = 0
    for known, new in ((2, 1), (3, 1), (6, 3), (9, 3)):  # the last rows are those of right guesses
        formula = Formula(weights(len(taps)), table)
        for row in range(known - 1):
            state = formula.row("speculator.first", text[row + 1], vectors[row])
        expected = formula.clear_line(state, 4)
        draft = drafter.draft(text[:known], 4, vectors[known - 1 - new : known - 1])
        assert len(draft) == 4
        assert list(draft.tokens[: len(expected)]) == expected
        compared += len(expected)
    assert compared >= 8
    drafter.close()


def test_a_long_answer_and_many_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of guesses are forgotten: what they wrote over in the ring must be none that the next row sees."""
    monkeypatch.setattr(trained_layer, "_LEAST_CHANCE", 0.0)
    spec, layer = load(save(tmp_path / "layer.gguf"))
    table = np.asarray(dequantize(spec.embed.table), np.float32)
    random, drafter, formula = np.random.default_rng(3), TrainedLayerDrafter(layer), Formula(weights(0), table)
    text = random.integers(0, spec.vocabulary_size, 45).tolist()
    vectors = random.normal(0, 2, (len(text) - 1, spec.hidden_size)).astype(np.float32)
    compared = 0
    for row in range(len(text) - 1):
        state = formula.row("speculator.first", text[row + 1], vectors[row])
        expected = formula.clear_line(state, 8)
        draft = drafter.draft(text[: row + 2], 15, vectors[row : row + 1])
        assert len(draft) == 15
        assert list(draft.tokens[: len(expected)]) == expected
        compared += len(expected)
    assert compared >= 80
    drafter.close()


@pytest.mark.parametrize("taps", [(), (0,)])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}])
def test_the_text_is_the_same(tmp_path: Path, taps: tuple[int, ...], sampling: dict[str, Any]) -> None:
    path = save(tmp_path / "layer.gguf", taps)
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "context": 128}
    prompt = [5, 9, 13, 2, 40, 7]
    with LLM(str(MODEL), speculate="off", **options) as plain:
        expected = plain.generate(prompt, max_tokens=60, ignore_eos=True, **sampling)
    with LLM(str(MODEL), speculate=f"heads:{path}", **options) as guessing:
        found = guessing.generate(prompt, max_tokens=60, ignore_eos=True, **sampling)
    assert found.ids == expected.ids
    assert found.usage.drafted_tokens > 0


def test_the_trainer_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    trainer, llama = (importlib.import_module(name) for name in ("train_drafter", "torch_llama"))
    stored = weights(1)
    own = {name.removesuffix(".weight"): torch.from_numpy(values) for name, values in stored.items()}
    table = np.asarray(dequantize(load_spec(open_gguf(MODEL)).embed.table), np.float32)
    like = {
        "token_embd": torch.from_numpy(table),
        "blk.0.ffn_down": own["blk.0.ffn_down"],
        "output_norm": own["output_norm"],
    }
    model = llama.Model({f"{name}.weight": values for name, values in like.items()}, 1, HEADS, KV_HEADS, EPS, BASE)
    drafter = trainer.Drafter(model, 1, own["token_embd"])
    with torch.no_grad():
        for mine, parts in {
            drafter.first.weight: ["speculator.first"],
            drafter.again.weight: ["speculator.again"],
            drafter.attn_qkv.weight: ["blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"],
            drafter.attn_output.weight: ["blk.0.attn_output"],
            drafter.ffn_in.weight: ["blk.0.ffn_gate", "blk.0.ffn_up"],
            drafter.ffn_down.weight: ["blk.0.ffn_down"],
            drafter.attn_norm: ["blk.0.attn_norm"],
            drafter.ffn_norm: ["blk.0.ffn_norm"],
        }.items():
            mine.copy_(torch.cat([own[part] for part in parts]))
    random, steps = np.random.default_rng(6), 3
    text = random.integers(0, len(table), 5 + steps - 1)
    vectors = random.normal(0, 2, (5, 2, table.shape[1])).astype(np.float32)
    segments = torch.tensor([[0, 0, 1, 1, 1]])
    known = llama.unit(torch.from_numpy(table[text]))
    found = drafter.states(llama.unit(torch.from_numpy(vectors))[None], known[None], segments, steps)
    for row, begin in ((1, 0), (2, 2), (4, 2)):
        formula = Formula(stored, table)
        for place in range(begin, row + 1):
            state = formula.row("speculator.first", text[place], vectors[place])
        for step in range(steps):
            np.testing.assert_allclose(found[step][0, row].detach().numpy(), state, rtol=0, atol=1e-4)
            if step + 1 < steps:
                state = formula.row("speculator.again", text[row + step + 1], state)


def spoiled(name: str, value: float) -> Floats:
    values = weights(0)[f"{name}.weight"].copy()
    values.flat[3] = value
    return values


def test_guesses_that_are_no_numbers_are_none(tmp_path: Path) -> None:
    """Weights that pass for such can still be too large for each other."""
    large = {name: values * np.float32(9e3 / np.abs(values).max()) for name, values in weights(0).items()}
    spec, layer = load(save(tmp_path / "layer.gguf", changed=large))
    drafter = TrainedLayerDrafter(layer)
    for value in (1.0, 1e30, 3e38):
        draft = drafter.draft([1, 2], 4, np.full((1, spec.hidden_size), value, np.float32))
        assert draft == NOTHING or all(0 <= token < spec.vocabulary_size for token in draft.tokens)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _, hidden = sizes()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("speculator.again.weight", {"changed": {"speculator.again.weight": np.zeros((hidden, hidden), np.float32)}}),
        ("speculator.first.weight", {"changed": {"speculator.first.weight": np.zeros((3, 2), np.float32)}}),
        ("blk.0.ffn_up", {"changed": {"blk.0.ffn_up.weight": np.zeros(0, np.float32)}}),
        ("another size", {"speculator.vocabulary": np.arange(3, dtype=np.int32)}),
        ("tokens that the model lacks", {"speculator.vocabulary": np.arange(sizes()[0] // 2, dtype=np.int32) * 1000}),
        ("speculator.vocabulary", {"speculator.vocabulary": "none"}),
        ("speculator.window", {"speculator.window": 0}),
        ("head_count", {"localllm-speculator.attention.head_count": 0}),
        ("cannot guess for this model: .*speculator.window is of type string", {"speculator.window": "256"}),
        ("tokens that the model lacks", {"speculator.vocabulary": np.arange(sizes()[0] // 2, dtype=np.int64) + 2**40}),
        ("holds no heads and no layer", {"general.architecture": "llama"}),
        *(
            (f"damaged: {name}.weight", {"changed": {f"{name}.weight": spoiled(name, value)}})
            for name in ("token_embd", "blk.0.attn_norm", "speculator.again")
            for value in (np.nan, np.inf, -1e30)
        ),
        ("first.weight", {"speculator.taps": np.array([1], np.int32)}),
    ]
    for number, (message, changes) in enumerate(wrong):
        with pytest.raises(ConfigurationError, match=message):
            load(save(tmp_path / f"{number}.gguf", **changes))
    for taps in ((99,), (1, 0), (-1,), (0, 0)):
        with pytest.raises(ConfigurationError, match="in rising order"):
            load(save(tmp_path / "taps.gguf", taps))
