"""Files that we write are read back the same by the `gguf` package and by our reader; a failed write leaves nothing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from localllm.gguf_io import GGUFError, MetadataValue, QuantType, dequantize, open_gguf, quantize, write_gguf

METADATA: dict[str, MetadataValue] = {
    "general.architecture": "llama",
    "general.name": "Zwölf Boxkämpfer 歪 👨‍👩‍👧",
    "a.true": True,
    "a.false": False,
    "a.small": 7,
    "a.negative": -7,
    "a.large": 2**40,
    "a.largest": 2**64 - 1,
    "a.smallest": -(2**63),
    "a.float": 0.5,
    "a.double": np.float64(0.1),
    "a.byte": np.uint8(200),
    "a.short": np.int16(-300),
    "a.strings": ["", "b", "cc", "▁歪"],
    "a.integers": [1, -2, 3],
    "a.long integers": [1, 2**40],
    "a.floats": [0.5, -1.5],
    "a.booleans": [True, False],
    "a.empty": np.zeros(0, np.float32),
    "a.words": np.array([1, 65535], np.uint16),
}


def tensors() -> dict[str, tuple[QuantType, tuple[int, ...], np.ndarray]]:
    random = np.random.default_rng(0)
    matrix = random.standard_normal((3, 256)).astype(np.float32)
    experts = random.standard_normal((2, 3, 64)).astype(np.float32)
    return {
        "norm.weight": (QuantType.F32, (5,), np.arange(5, dtype=np.float32)),
        "a.weight": (QuantType.Q4_K, (3, 256), quantize(matrix, QuantType.Q4_K)),
        "experts.weight": (QuantType.Q5_0, (2, 3, 64), quantize(experts, QuantType.Q5_0)),
        "half.weight": (QuantType.F16, (3, 256), quantize(matrix, QuantType.F16)),
    }


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_the_published_package_and_our_reader_agree(tmp_path: Path, version: int, alignment: int | None) -> None:
    path = tmp_path / "model.gguf"
    metadata = METADATA if alignment is None else {**METADATA, "general.alignment": alignment}
    stored = tensors()
    write_gguf(path, metadata, stored, version=version)
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        assert ours.version == version
        assert ours.metadata.keys() == tuple(metadata)
        for key, wanted in metadata.items():
            mine = ours.metadata.get_raw(key)
            if key == "a.empty":  # the package cannot return an empty array
                assert ours.metadata.floats(key).size == 0
                continue
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs.fields[key].contents()))
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(wanted))
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors] == list(stored)
        for tensor in theirs.tensors:
            mine_tensor = ours.tensor(tensor.name)
            assert mine_tensor.shape == tuple(reversed(tensor.shape.tolist())) == stored[tensor.name][1]
            assert int(mine_tensor.quant_type) == int(tensor.tensor_type)
            assert mine_tensor.data.tobytes() == tensor.data.tobytes() == stored[tensor.name][2].tobytes()
        np.testing.assert_array_equal(dequantize(ours.tensor("norm.weight")), np.arange(5))


def test_types_are_stored_as_promised(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, METADATA, {})
    with open_gguf(path) as file:
        labels = {key: file.metadata.type_label(key) for key in METADATA if key.startswith("a.")}
    assert labels == {
        "a.true": "bool",
        "a.false": "bool",
        "a.small": "uint32",
        "a.negative": "int32",
        "a.large": "uint64",
        "a.largest": "uint64",
        "a.smallest": "int64",
        "a.float": "float32",
        "a.double": "float64",
        "a.byte": "uint8",
        "a.short": "int16",
        "a.strings": "array of string",
        "a.integers": "array of int32",
        "a.long integers": "array of int64",
        "a.floats": "array of float32",
        "a.booleans": "array of bool",
        "a.empty": "array of float32",
        "a.words": "array of uint16",
    }


def test_the_first_bytes_are_those_of_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {"k": np.uint8(9)}, {"t": (QuantType.I8, (2, 3), b"abcdef")})
    wanted = (
        b"GGUF\x03\0\0\0" + b"\x01\0\0\0\0\0\0\0" * 2  # magic, version, one tensor, one key
        + b"\x01\0\0\0\0\0\0\0k" + b"\0\0\0\0" + b"\x09"  # key, type uint8, value
        + b"\x01\0\0\0\0\0\0\0t" + b"\x02\0\0\0"  # name, two dimensions, the fastest one first
        + b"\x03\0\0\0\0\0\0\0" + b"\x02\0\0\0\0\0\0\0" + b"\x18\0\0\0" + b"\0" * 8  # type I8 (24), offset 0
    )  # fmt: skip
    assert path.read_bytes() == wanted + bytes(-len(wanted) % 32) + b"abcdef" + bytes(26)


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"k": 2**64}, "k: 18446744073709551616 does not fit into 64 bits"),
        ({"k": 1e300}, r"k: 1e\+300 does not fit into float32"),
        ({"k": []}, "k: the type of an empty list is unknown"),
        ({"k": ["a", 1]}, "k: strings and numbers are mixed"),
        ({"k": [None]}, "k: a list of NoneType"),
        ({"k": np.zeros((2, 2), np.float32)}, "k: an array has one dimension"),
        ({"k": np.zeros(2, np.float16)}, "k: float16 is no number of the format"),
        ({"general.alignment": 24}, "general.alignment: 24 is no power of two"),
        ({"general.alignment": "32"}, "general.alignment: '32' is no power of two"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, metadata: dict[str, object], complaint: str) -> None:
    with pytest.raises(GGUFError, match=complaint):
        write_gguf(tmp_path / "model.gguf", metadata, {})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(GGUFError, match=r"tensor t: the shape \(4, 40\) is no whole number of Q4_0 blocks"):
        write_gguf(path, {}, {"t": (QuantType.Q4_0, (4, 40), b"")})
    with pytest.raises(GGUFError, match=r"tensor t: 17 bytes of data, Q4_0 of \(1, 32\) has 18"):
        write_gguf(path, {}, {"t": (QuantType.Q4_0, (1, 32), bytes(17))})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(GGUFError, match=r"model\.gguf: cannot be written: "):
        write_gguf(path, METADATA, tensors())
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(GGUFError, match="cannot be written: No such file"):
        write_gguf(tmp_path / "nowhere" / "model.gguf", METADATA, {})


def test_a_file_is_replaced_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {}, {"t": (QuantType.F32, (1,), np.ones(1, np.float32))})
    with open_gguf(path) as old:
        write_gguf(path, {}, {"t": (QuantType.F32, (1,), np.zeros(1, np.float32))})
        assert dequantize(old.tensor("t")) == [1]
        with open_gguf(path) as new:
            assert dequantize(new.tensor("t")) == [0]
