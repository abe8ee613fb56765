"""Typed reads: what each accepts, and that a missing or mistyped key is named with what was found and wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import GGUFError, GGUFFile, Metadata, MetadataValue, open_gguf, write_gguf

VALUES: dict[str, MetadataValue] = {
    "text": "hello",
    "broken text": b"caf\xe9",
    "integer": 3,
    "negative": np.int8(-3),
    "float": 0.25,
    "double": np.float64(0.1),
    "flag": True,
    "pad": b"x",  # what follows lies unaligned
    "texts": ["a", "", "歪"],
    "broken texts": [b"\xff\xfe", b"ok"],
    "integers": np.array([1, 2, 3], np.uint32),
    "floats": np.array([0.5, 0.25], np.float32),
    "doubles": np.array([0.1], np.float64),
    "flags": np.array([True, False]),
}
READS: dict[str, Callable[[Metadata, str], object]] = {
    "string": Metadata.string,
    "integer": Metadata.integer,
    "floating": Metadata.floating,
    "boolean": Metadata.boolean,
    "strings": Metadata.strings,
    "string_bytes": Metadata.string_bytes,
    "integers": Metadata.integers,
    "floats": Metadata.floats,
    "booleans": Metadata.booleans,
}
ACCEPTED = {
    "string": {"text", "broken text", "pad"},
    "integer": {"integer", "negative"},
    "floating": {"integer", "negative", "float", "double"},
    "boolean": {"flag"},
    "strings": {"texts", "broken texts"},
    "string_bytes": {"texts", "broken texts"},
    "integers": {"integers"},
    "floats": {"integers", "floats", "doubles"},
    "booleans": {"flags"},
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[GGUFFile]:
    write_gguf(tmp_path / "model.gguf", VALUES, {})
    with open_gguf(tmp_path / "model.gguf") as opened:
        yield opened


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("key", VALUES)
def test_each_read_takes_its_types_and_names_the_others(file: GGUFFile, read: str, key: str) -> None:
    metadata = file.metadata
    if key in ACCEPTED[read]:
        READS[read](metadata, key)
        return
    offset, label = metadata.offset(key), metadata.type_label(key)
    with pytest.raises(GGUFError) as caught:
        READS[read](metadata, key)
    assert f"byte {offset}: the metadata key {key} is of type {label}, " in caught.value.message


def test_values(file: GGUFFile) -> None:
    metadata = file.metadata
    assert metadata.string("text") == "hello"
    assert metadata.string("broken text") == "caf\ufffd"
    assert metadata.integer("negative") == -3
    assert metadata.floating("integer") == 3.0
    assert isinstance(metadata.floating("integer"), float)
    assert metadata.floating("double") == 0.1
    assert metadata.boolean("flag") is True
    assert metadata.strings("texts") == ["a", "", "歪"]
    assert metadata.string_bytes("broken texts") == [b"\xff\xfe", b"ok"]
    assert metadata.strings("broken texts")[0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert metadata.integers("integers").tolist() == [1, 2, 3]
    assert metadata.integers("integers").dtype == np.uint32
    assert metadata.floats("integers").dtype == np.float32
    assert metadata.floats("doubles").dtype == np.float64
    assert metadata.booleans("flags").tolist() == [True, False]


def test_arrays_are_aligned_and_read_only(file: GGUFFile) -> None:
    for key in ("integers", "floats", "doubles"):
        array = file.metadata.floats(key) if key != "integers" else file.metadata.integers(key)
        assert array.flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_missing_key_is_named_with_its_neighbours(file: GGUFFile) -> None:
    for read in READS.values():
        with pytest.raises(GGUFError, match="the metadata key intger is missing") as caught:
            read(file.metadata, "intger")
        assert caught.value.hint is not None
        assert "integer" in caught.value.hint
    with pytest.raises(GGUFError, match="the metadata key zzz is missing"):
        file.metadata.get_raw("zzz")


def test_a_default_stands_for_a_missing_key_only(file: GGUFFile) -> None:
    metadata = file.metadata
    assert metadata.string("none", None) is None
    assert metadata.integer("none", 5) == 5
    assert metadata.floating("none", 1e-5) == 1e-5
    assert metadata.boolean("none", False) is False
    assert metadata.integer("integer", 5) == 3
    with pytest.raises(GGUFError, match="is of type float32, an integer was expected"):
        metadata.integer("float", 5)


def test_a_number_out_of_range_is_refused(file: GGUFFile) -> None:
    metadata = file.metadata
    assert metadata.integer("integer", minimum=1, maximum=3) == 3
    for limits in ({"minimum": 4}, {"maximum": 2}, {"minimum": 4, "maximum": 9}):
        with pytest.raises(GGUFError, match=re.escape("the metadata key integer is 3, ")):
            metadata.integer("integer", **limits)
    with pytest.raises(GGUFError, match="the metadata key negative is -3, at least 1 was expected"):
        metadata.integer("negative", 5, minimum=1)


def test_it_looks_like_a_mapping(file: GGUFFile) -> None:
    metadata = file.metadata
    assert metadata.keys() == tuple(metadata) == tuple(VALUES)
    assert len(metadata) == len(VALUES)
    assert "text" in metadata
    assert "none" not in metadata
    assert 3 not in metadata
    assert metadata.is_array("texts")
    assert not metadata.is_array("text")
    assert not metadata.is_array("none")
    assert metadata.array_length("texts") == 3
    with pytest.raises(GGUFError, match="is of type string, an array was expected"):
        metadata.array_length("text")
    for key, value in VALUES.items():
        raw = metadata.get_raw(key)
        if not isinstance(value, bytes) and key != "broken texts":
            np.testing.assert_array_equal(np.asarray(raw), np.asarray(value))


def test_a_closed_file_says_so(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", VALUES, {})
    file = open_gguf(tmp_path / "model.gguf")
    kept = file.metadata.integers("integers")
    file.close()
    assert kept.tolist() == [1, 2, 3]
    for read in (file.metadata.string, file.metadata.get_raw):
        with pytest.raises(GGUFError, match="the file is closed"):
            read("text")
    with pytest.raises(GGUFError, match="the file is closed"):
        file.metadata.floats("floats")
