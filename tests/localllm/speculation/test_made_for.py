"""A file that guesses says for which model it was made."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import LLM
from localllm.errors import ConfigurationError
from localllm.gguf_io import GGUFError, GGUFFile, QuantType, dequantize, open_gguf
from localllm.gguf_io.quants.quantise import quantize
from localllm.gguf_io.writer import write_gguf
from localllm.kernels.executor import LoadProgress
from localllm.speculation.made_for import FINGERPRINT, NAME, check_made_for, fingerprint, made_for

from .test_trained_layer import MODEL, save


def changed(path: Path, *, quantise: bool = False, norm: float = 1.0) -> GGUFFile:
    """The model with its matrices in 8 bits, or with another norm."""
    with open_gguf(MODEL) as model:
        metadata: dict[str, Any] = {key: model.metadata.get_raw(key) for key in model.metadata}
        tensors: dict[str, Any] = {}
        for name, tensor in model.tensors.items():
            kind, values = tensor.quant_type, np.asarray(dequantize(tensor), np.float32)
            if quantise and values.ndim == 2 and values.shape[1] % 32 == 0:
                kind = QuantType.Q8_0
            if name == "output_norm.weight":
                values = values * np.float32(norm)
            tensors[name] = kind, tensor.shape, quantize(values, kind)
    write_gguf(path, metadata, tensors)
    return open_gguf(path)


def test_a_quantisation_is_the_same_model_and_other_norms_are_another(tmp_path: Path) -> None:
    own = fingerprint(open_gguf(MODEL))
    assert fingerprint(changed(tmp_path / "same.gguf")) == own
    assert fingerprint(changed(tmp_path / "small.gguf", quantise=True)) == own
    assert fingerprint(changed(tmp_path / "other.gguf", norm=1.01)) != own


def test_a_file_of_another_model_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = changed(tmp_path / "other.gguf", norm=1.01)
    keys: dict[str, Any] = {**made_for(other), NAME: "Someone\x1b Else"}
    path = save(tmp_path / "layer.gguf", **keys)
    with pytest.raises(ConfigurationError, match=r"layer\.gguf was made for .Someone\\x1b Else. and cannot guess for"):
        LLM(str(MODEL), device="reference", speculate=f"heads:{path}")
    check_made_for(open_gguf(path), other)
    assert not caplog.records


def test_an_older_file_is_taken_with_a_note_until_it_is_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    mark = importlib.import_module("mark_drafter").mark
    path = save(tmp_path / "layer.gguf")
    events: list[LoadProgress] = []
    for notes in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "localllm"):
            LLM(str(MODEL), device="reference", speculate=f"heads:{path}", progress=events.append).close()
        assert len([each for each in caplog.records if "for which model" in each.message]) == notes
        assert {"preparing the layer that guesses"} <= {event.phase for event in events}
        before = {name: bytes(tensor.data) for name, tensor in open_gguf(path).tensors.items()}
        mark(str(MODEL), str(path))
        with open_gguf(path) as file:
            assert {name: bytes(tensor.data) for name, tensor in file.tensors.items()} == before
            assert file.metadata.string(FINGERPRINT) == fingerprint(open_gguf(MODEL))


def test_a_fingerprint_that_is_no_text_is_refused(tmp_path: Path) -> None:
    keys: dict[str, Any] = {FINGERPRINT: 3}
    path = save(tmp_path / "layer.gguf", **keys)
    with pytest.raises(GGUFError, match="fingerprint"):
        LLM(str(MODEL), device="reference", speculate=f"heads:{path}")


def test_a_mark_is_not_replaced_by_another_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    other = changed(tmp_path / "other.gguf", norm=1.01)
    keys: dict[str, Any] = {**made_for(other)}
    path = save(tmp_path / "layer.gguf", **keys)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"was made for other\.gguf"):
        importlib.import_module("mark_drafter").mark(str(MODEL), str(path))
    assert path.read_bytes() == before
