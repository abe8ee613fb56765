"""Models in several files: opened by any part; missing, renamed, joined or mixed parts are told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import GGUFError, MetadataValue, QuantType, dequantize, open_gguf, write_gguf


def write_part(path: Path, number: int, names: str, **changes: MetadataValue) -> None:
    """Part `number` (from 1) of 3 with one F32 tensor for each letter."""
    metadata: dict[str, MetadataValue] = {
        "split.no": np.uint16(number - 1),
        "split.count": np.uint16(3),
        "split.tensors.count": np.int32(6),
    }
    if number == 1:
        metadata |= {"general.architecture": "llama", "general.name": "tiny"}
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    tensors = {name: (QuantType.F32, (2,), np.array([ord(name), number], np.float32)) for name in names}
    write_gguf(path, metadata, tensors)


def part(folder: Path, number: int, stem: str = "tiny") -> Path:
    return folder / f"{stem}-{number:05}-of-00003.gguf"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for number, names in ((1, "abc"), (2, "d"), (3, "ef")):
        write_part(part(tmp_path, number), number, names)
    return tmp_path


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_opens_the_model(model: Path, number: int) -> None:
    with open_gguf(part(model, number)) as file:
        assert file.path == part(model, 1)
        assert file.paths == tuple(part(model, each) for each in (1, 2, 3))
        assert file.size_bytes == sum(path.stat().st_size for path in file.paths)
        assert file.metadata.string("general.name") == "tiny"
        assert list(file.tensors) == list("abcdef")
        assert [entry.name for entry in file.entries] == list("abcdef")
        assert dequantize(file.tensor("e")).tolist() == [ord("e"), 3]
        kept = file.tensor("f")
    assert dequantize(kept).tolist() == [ord("f"), 3]


def test_missing_parts_are_named(model: Path) -> None:
    part(model, 2).unlink()
    with pytest.raises(GGUFError, match=r"1 of 3 parts are missing: tiny-00002-of-00003\.gguf"):
        open_gguf(part(model, 3))
    part(model, 1).unlink()
    with pytest.raises(GGUFError, match=r"2 of 3 parts are missing: tiny-00001-of-00003\.gguf, tiny-00002"):
        open_gguf(part(model, 3), metadata_only=True)


def test_a_renamed_part_says_what_to_do(model: Path) -> None:
    renamed = model / "model.gguf"
    shutil.copy(part(model, 1), renamed)
    with pytest.raises(GGUFError, match="part of a model split in 3, but its name does not say which") as caught:
        open_gguf(renamed)
    assert "names back" in str(caught.value.hint)
    wrong_count = model / "tiny-00001-of-00002.gguf"
    shutil.copy(part(model, 1), wrong_count)
    with pytest.raises(GGUFError, match=r"the name says 2 parts, split\.count says 3"):
        open_gguf(wrong_count)


def test_swapped_parts_are_noticed(model: Path) -> None:
    shutil.copy(part(model, 3), part(model, 2))
    with pytest.raises(GGUFError, match=r"00002-of-00003\.gguf: it says to be part 3 of 3, its name says 2 of 3"):
        open_gguf(part(model, 1))


def test_parts_joined_byte_by_byte(model: Path) -> None:
    joined = model / "joined.gguf"
    joined.write_bytes(b"".join(part(model, number).read_bytes() for number in (1, 2, 3)))
    with pytest.raises(GGUFError, match="its parts were joined byte by byte"):
        open_gguf(joined)


def test_parts_of_two_models(model: Path) -> None:
    write_part(part(model, 2), 2, "d", general__architecture="qwen3")
    with pytest.raises(GGUFError, match=r"mixed: general\.architecture is qwen3, but llama in tiny-00001"):
        open_gguf(part(model, 1))
    write_part(part(model, 2), 2, "d", general__name="other")
    with pytest.raises(GGUFError, match=r"mixed: general\.name is other, but tiny"):
        open_gguf(part(model, 1))
    write_part(part(model, 2), 2, "d", split__tensors__count=np.int32(9))
    with pytest.raises(GGUFError, match=r"mixed: split\.tensors\.count is 9, but 6"):
        open_gguf(part(model, 1))


def test_tensors_that_are_missing_or_there_twice(model: Path) -> None:
    write_part(part(model, 2), 2, "dg")
    with pytest.raises(GGUFError, match=r"3 parts hold 7 tensors, split\.tensors\.count says 6"):
        open_gguf(part(model, 1))
    write_part(part(model, 2), 2, "a")
    with pytest.raises(GGUFError, match=r"tensor a is also in tiny-00001-of-00003\.gguf"):
        open_gguf(part(model, 1))


def test_hostile_split_keys(model: Path) -> None:
    for key, value in (("split__count", 2**63), ("split__count", "3"), ("split__no", 1.5), ("split__no", -1)):
        write_part(part(model, 1), 1, "abc", **{key: value})
        with pytest.raises(GGUFError, match="tiny-00001-of-00003"):
            open_gguf(part(model, 1))


def test_a_broken_part_is_named(model: Path) -> None:
    content = part(model, 3).read_bytes()
    part(model, 3).write_bytes(content[:100])
    with pytest.raises(GGUFError, match=r"tiny-00003-of-00003\.gguf: byte "):
        open_gguf(part(model, 1))


def test_a_split_in_one(tmp_path: Path) -> None:
    path = tmp_path / "any name.gguf"
    write_gguf(path, {"split.count": 1, "split.no": 0}, {})
    with open_gguf(path) as file:
        assert file.paths == (path,)
