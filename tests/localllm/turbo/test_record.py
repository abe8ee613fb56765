"""Calibrations as untrusted files."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import ConfigurationError
from localllm.kernels.turbo import LayerTurbo, Scores, Shortlist, Sketch, Turbo
from localllm.profiles.facts_file import fingerprint
from localllm.turbo.record import LayerFacts, TurboCost, TurboRecord, load_turbo, save_turbo, turbo_path

COST = TurboCost(100, 20.0, 20.5, 2.5, 0.4, 0.012, 0.97)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "some.Q4_0.gguf"
    path.write_bytes(np.random.default_rng(1).bytes(200_000))
    return path


def _record(model: Path) -> TurboRecord:
    rng = np.random.default_rng(2)
    floats = [rng.standard_normal(40).astype(np.float32) for _ in range(4)]
    sketch = Sketch(floats[0], floats[1], np.arange(32, dtype=np.int32), rng.integers(0, 256, (40, 34), dtype=np.uint8))
    layers = (
        LayerTurbo(Scores.SKETCH, floats[2], sketch),
        None,
        LayerTurbo(Scores.GATE, np.abs(floats[3])),
        LayerTurbo(Scores.STORED, np.full(40, -np.inf, np.float32)),
    )
    shortlist = Shortlist(np.arange(32, dtype=np.int32), rng.integers(0, 256, (50, 34), dtype=np.uint8), 6.0)
    kinds = {0: Scores.SKETCH, 2: Scores.GATE, 3: Scores.STORED}
    facts = {index: LayerFacts(kind, 0.2, 0.1, 0.001) for index, kind in kinds.items()}
    return TurboRecord(fingerprint(model), 0.02, Turbo(layers, shortlist), facts, COST)


def test_a_file_gives_the_same_calibration(model: Path) -> None:
    record = _record(model)
    path = turbo_path(model)
    assert path.name == "some.Q4_0.turbo"
    save_turbo(record, path)
    loaded = load_turbo(model)
    assert (loaded.budget, loaded.cost, loaded.facts) == (0.02, COST, record.facts)
    for found, given_layer in zip(loaded.turbo.layers, record.turbo.layers, strict=True):
        if given_layer is None:
            assert found is None
            continue
        assert found is not None
        assert found.scores is given_layer.scores
        np.testing.assert_array_equal(found.thresholds, given_layer.thresholds)
    sketches = [one.turbo.layers[0].sketch for one in (loaded, record)]  # type: ignore[union-attr]
    for name in ("scales", "bias", "inputs", "extra"):
        np.testing.assert_array_equal(*(getattr(sketch, name) for sketch in sketches))
    assert loaded.turbo.shortlist is not None
    assert loaded.turbo.shortlist.margin == 6.0
    assert "+2.50% +- 0.40%" in str(loaded.cost)


def test_without_a_file_the_command_is_named(model: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is none") as caught:
        load_turbo(model)
    assert "localllm profile MODEL --predictor" in str(caught.value.hint)


def test_a_calibration_of_another_file_is_refused(model: Path) -> None:
    save_turbo(_record(model), turbo_path(model))
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ConfigurationError, match="of another file"):
        load_turbo(model)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_sound(model: Path, data: st.DataObject) -> None:
    path = turbo_path(model)
    save_turbo(_record(model), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else None])
    try:
        loaded = load_turbo(model)
    except ConfigurationError:
        return
    assert all(layer is None or not np.isnan(layer.thresholds).any() for layer in loaded.turbo.layers)


@pytest.mark.parametrize("method", [0, 8, 12, 14, 99], ids=["encrypted", "deflate", "bzip2", "lzma", "unknown"])
def test_archives_that_cannot_be_unpacked_are_damaged(model: Path, method: int) -> None:
    path = turbo_path(model)
    save_turbo(_record(model), path)
    content = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        entry = content.find(magic)
        content[entry + at] |= method == 0
        content[entry + at + 2] = method
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="damaged"):
        load_turbo(model)


def _changed(model: Path, **changes: Any) -> None:
    """A sound file with other entries: fields of the head by name, arrays by name."""
    path = turbo_path(model)
    save_turbo(_record(model), path)
    with np.load(path) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    head = json.loads(arrays.pop("head").tobytes())
    for name, value in changes.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            head[name] = value
    buffer = io.BytesIO()
    np.savez(buffer, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
    path.write_bytes(buffer.getvalue())


WRONG: list[dict[str, Any]] = [
    {"version": 2},
    {"count": 10**9},
    {"count": -1},
    {"count": 2},
    {"count": float("inf")},
    {"margin": -1.0},
    {"margin": 1e308},
    {"margin": "wide"},
    {"layers": [{"layer": 0, "scores": "magic", "kept": 1, "fired": 1, "loss": 0}]},
    {"layers": [{"layer": 9, "scores": "gate", "kept": 1, "fired": 1, "loss": 0}]},
    {"layers": [7]},
    {"cost": {}},
    {"thresholds2": np.full(40, np.nan, np.float32)},
    {"thresholds2": np.zeros(40)},
    {"scales0": np.full(40, np.inf, np.float32)},
    {"bias0": np.zeros(39, np.float32)},
    {"inputs0": np.full(32, -1, np.int32)},
    {"extra0": np.zeros((40, 33), np.uint8)},
    {"head_extra": np.zeros((50, 2), np.uint8)},
    {"head_inputs": np.zeros(31, np.int32)},
    {"thresholds0": np.array([{}], dtype=object)},
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: next(iter(changes)))
def test_impossible_contents_are_refused(model: Path, changes: dict[str, Any]) -> None:
    _changed(model, **changes)
    with pytest.raises(ConfigurationError, match="damaged"):
        load_turbo(model)


def test_a_file_without_a_shortlist(model: Path) -> None:
    record = _record(model)
    save_turbo(replace(record, turbo=replace(record.turbo, shortlist=None)), turbo_path(model))
    assert load_turbo(model).turbo.shortlist is None
