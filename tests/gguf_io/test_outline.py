"""An outline has the shapes and sizes of the whole model and takes no memory for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import GGUFError, QuantType, TruncatedGGUFError, open_gguf, outline_gguf, write_gguf
from localllm.models import load_spec


def test_an_outline_is_like_the_model(data_folder: Path) -> None:
    for path in sorted((data_folder / "models").glob("*.gguf")):
        with open_gguf(path) as whole:
            spec = load_spec(whole)
            outline = outline_gguf([(path.name, path.read_bytes()[: path.stat().st_size // 2])])
            assert list(outline.tensors) == list(whole.tensors)
            for name, tensor in whole.tensors.items():
                other = outline.tensors[name]
                assert (other.shape, other.quant_type, other.nbytes) == (tensor.shape, tensor.quant_type, tensor.nbytes)
            assert len(load_spec(outline).layers) == len(spec.layers)


def test_large_tensors_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    values = np.zeros((1024, 1024), dtype=np.float32)
    write_gguf(path, {"general.architecture": "x"}, {"w": (QuantType.F32, values.shape, values)})
    tensor = outline_gguf([("m.gguf", path.read_bytes()[:4096])]).tensors["w"]
    assert (tensor.nbytes, tensor.data.strides) == (4 << 20, (0, 0))


def test_short_and_wrong_heads(data_folder: Path) -> None:
    path = next((data_folder / "models").glob("*.gguf"))
    with pytest.raises(TruncatedGGUFError):
        outline_gguf([("m", path.read_bytes()[:200])])
    with pytest.raises(GGUFError, match="web page"):
        outline_gguf([("m", b"<!DOCTYPE html>")])
