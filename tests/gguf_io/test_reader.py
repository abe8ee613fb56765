"""Opening models: what is handed out, how long it lives, and paths that are no files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.gguf_io import GGUFError, MetadataValue, QuantType, dequantize, open_gguf, quantize, write_gguf


def write_small(path: Path, magic: str = "GGUF") -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    write_gguf(
        path,
        {"general.architecture": "llama", "llama.block_count": 1},
        {
            "blk.0.attn_norm.weight": (QuantType.F32, (32,), values[0]),
            "blk.0.attn_q.weight": (QuantType.Q8_0, (2, 32), quantize(values, QuantType.Q8_0)),
        },
        magic=magic,
    )


@pytest.mark.parametrize("magic", ["GGUF", "PWRI"])
def test_a_file_is_handed_out_as_it_is(tmp_path: Path, magic: str) -> None:
    path = tmp_path / "model.gguf"
    write_small(path, magic)
    with open_gguf(str(path)) as file:
        assert file.path == path
        assert file.paths == (path,)
        assert file.magic == magic
        assert file.version == 3
        assert file.size_bytes == path.stat().st_size
        assert list(file.tensors) == ["blk.0.attn_norm.weight", "blk.0.attn_q.weight"]
        matrix = file.tensor("blk.0.attn_q.weight")
        assert matrix.shape == (2, 32)
        assert matrix.quant_type is QuantType.Q8_0
        assert matrix.data.shape == (2, 34)
        assert not matrix.data.flags.writeable
        assert [entry.type_label for entry in file.entries] == ["F32", "Q8_0"]


def test_the_neuron_placement_of_powerinfer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf.generated.gpuidx"
    placed = np.array([0, 1, 1, 0, 1, 0], np.int32)
    write_gguf(
        path,
        {"general.architecture": "generic.gpu_index", "generic.gpu_index.block_count": 1, "split.vram_capacity": 2**33},
        {
            "blk.0.gpu_idx": (QuantType.I32, (6,), placed),
            "blk.0.gpu_bucket": (QuantType.I32, (3,), np.flatnonzero(placed).astype(np.int32)),
        },
        magic="PWRI",
    )
    with open_gguf(path) as file:
        assert file.metadata.integer("split.vram_capacity") == 2**33
        np.testing.assert_array_equal(file.tensor("blk.0.gpu_idx").data.view(np.int32), placed)
        np.testing.assert_array_equal(dequantize(file.tensor("blk.0.gpu_bucket")), [1, 2, 4])


def test_a_missing_tensor_is_named_with_its_neighbours(tmp_path: Path) -> None:
    write_small(tmp_path / "model.gguf")
    with open_gguf(tmp_path / "model.gguf") as file, pytest.raises(GGUFError) as caught:
        file.tensor("blk.0.attn_k.weight")
    assert "model.gguf: there is no tensor blk.0.attn_k.weight" in caught.value.message
    assert "blk.0.attn_q.weight" in str(caught.value.hint)


def test_tensors_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_small(path)
    file = open_gguf(path)
    norm = file.tensor("blk.0.attn_norm.weight")
    file.close()
    file.close()
    path.unlink()
    np.testing.assert_array_equal(dequantize(norm), np.arange(32))
    assert file.tensors == {}
    assert file.size_bytes > 0
    with pytest.raises(GGUFError, match="there is no tensor"):
        file.tensor("blk.0.attn_norm.weight")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"none\.gguf: cannot be opened: No such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="is a folder"):
        open_gguf(tmp_path)
    with pytest.raises(GGUFError, match="cannot be opened: "):
        open_gguf("\0")
    with pytest.raises(GGUFError, match="cannot be opened: "):
        open_gguf(tmp_path / ("x" * 5000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match="is not a regular file"):
        open_gguf(tmp_path / "pipe.gguf")


keys = st.text(min_size=1, max_size=40).filter(lambda key: key != "general.alignment" and "split." not in key)
numbers = st.integers(-(2**63), 2**64 - 1)
values = st.one_of(
    st.booleans(),
    numbers,
    st.floats(width=32),
    st.text(),
    st.lists(st.text(), min_size=1, max_size=9),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
)
tables = st.dictionaries(st.text(max_size=30), st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=6)


@settings(max_examples=100, deadline=None)
@given(metadata=st.dictionaries(keys, values, max_size=8), shapes=tables, alignment=st.sampled_from([1, 32, 256]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, MetadataValue],
    shapes: dict[str, list[int]],
    alignment: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.gguf"
    random = np.random.default_rng(0)
    stored = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    write_gguf(
        path,
        {**metadata, "general.alignment": alignment},
        {name: (QuantType.F32, array.shape, array) for name, array in stored.items()},
    )
    with open_gguf(path) as file:
        assert file.metadata.keys() == (*metadata, "general.alignment")
        for key, value in metadata.items():
            np.testing.assert_array_equal(np.asarray(file.metadata.get_raw(key)), np.asarray(value))
        assert list(file.tensors) == list(stored)
        for name, array in stored.items():
            np.testing.assert_array_equal(dequantize(file.tensor(name)), array)
