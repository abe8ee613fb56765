"""Broken and hostile files end in a GGUFError that names field and offset, with bounded memory, never otherwise.

The bytes are put together here by hand: neither our writer nor a constant of the reader is used.
"""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.gguf_io import GGUFError, Header, TruncatedGGUFError, dequantize, open_gguf, parse_header

HUGE = 1 << 63


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def file_of(
    *records: bytes, tensors: tuple[bytes, ...] = (), data: bytes = b"", magic: bytes = b"GGUF", version: int = 3
) -> bytes:
    """A file from ready-made metadata and tensor records, with the data section where alignment 32 puts it."""
    head = magic + pack("<IQQ", version, len(tensors), len(records)) + b"".join(records) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def uint32(key: bytes, value: int) -> bytes:
    return text(key) + pack("<II", 4, value)


def tensor(name: bytes, sizes: tuple[int, ...], number: int = 0, offset: int = 0) -> bytes:
    return text(name) + pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number, offset)


VALID = file_of(
    text(b"general.architecture") + pack("<I", 8) + text(b"llama"),
    uint32(b"llama.block_count", 2),
    text(b"llama.rope.freq_base") + pack("<If", 6, 10000.0),
    text(b"flag") + pack("<I?", 7, True),
    text(b"flags") + pack("<IIQ??", 9, 7, 2, True, False),
    text(b"tokens") + pack("<IIQ", 9, 8, 3) + text(b"a") + text(b"") + text(b"\xe2\x96\x81c"),
    text(b"scores") + pack("<IIQ3f", 9, 6, 3, 0.0, -1.0, -2.0),
    tensors=(tensor(b"norm", (3,)), tensor(b"matrix", (32, 2), 8, 32), tensor(b"half", (4,), 1, 128)),
    data=pack("<3f20x", 1, 2, 3) + (pack("<e", 0.5) + bytes(range(32))) * 2 + pack("<28x4e", 1, 2, 3, 4),
)


def open_bytes(folder: Path, content: bytes) -> None:
    """Open the file and read everything in it."""
    path = folder / "model.gguf"
    path.write_bytes(content)
    with open_gguf(path) as file:
        for key in file.metadata:
            file.metadata.get_raw(key)
            if file.metadata.type_label(key) == "array of string":
                file.metadata.string_bytes(key)
        for found in file.tensors.values():
            dequantize(found)


def message_for(folder: Path, content: bytes) -> str:
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError) as caught:
            open_bytes(folder, content)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    return str(caught.value)


def test_the_valid_file_is_valid(tmp_path: Path) -> None:
    open_bytes(tmp_path, VALID)
    for version in (2, 3):
        open_bytes(tmp_path, VALID.replace(b"GGUF\x03", b"GGUF" + bytes((version,)), 1))
    open_bytes(tmp_path, VALID.replace(b"GGUF", b"PWRI", 1))
    open_bytes(tmp_path, file_of())  # neither metadata nor tensors
    open_bytes(tmp_path, VALID + bytes(100))  # padding at the end


def test_cut_at_every_byte(tmp_path: Path) -> None:
    for size in range(len(VALID)):
        message = message_for(tmp_path, VALID[:size])
        assert "fetch it again" in message
        if size:
            assert ": byte " in message


def header_of(content: bytes, sizes: list[int]) -> Header | None:
    """The header, or None with the number of bytes that are needed at least added to `sizes`."""
    try:
        return parse_header(content, "remote.gguf")
    except TruncatedGGUFError as error:
        sizes.append(error.needed_bytes)
        return None


def test_a_growing_prefix_says_how_much_more_it_needs() -> None:
    sizes = [1]
    while (header := header_of(VALID[: sizes[-1]], sizes)) is None:
        assert sizes[-1] > sizes[-2]
    assert sizes[-1] <= header.data_start
    assert [entry.name for entry in header.entries] == ["norm", "matrix", "half"]
    assert [entry.nbytes for entry in header.entries] == [12, 68, 8]


HEADERS = {
    "empty": (b"", "file: it is empty"),
    "version 1": (VALID.replace(b"GGUF\x03", b"GGUF\x01", 1), "byte 4: version: 1 is not supported"),
    "version 4": (VALID.replace(b"GGUF\x03", b"GGUF\x04", 1), "byte 4: version: 4 is not supported"),
    "swapped": (
        VALID.replace(b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", 1),
        "byte 4: version: a big-endian file (version 3",
    ),
    "swapped magic": (b"FUGG" + VALID[4:], "big-endian file"),
    "GGML": (b"GGML" + VALID[4:], "a GGML file from before GGUF"),
    "ggjt": (b"tjgg" + VALID[4:], "a GGML file from before GGUF"),
    "web page": (b"\n<!DOCTYPE html>\n<html><head>", "a web page (HTML), not a model"),
    "JSON": (b'{"error":"Invalid credentials"}', "JSON text"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git-LFS pointer, not a model"),
    "safetensors": (pack("<Q", 20) + b'{"__metadata__":{}}  ', "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(60), "an archive or a PyTorch checkpoint"),
    "noise": (b"\x93\x01\x02\x03" + bytes(60), "starts with b'\\x93\\x01\\x02\\x03', not with GGUF"),
    "zeros": (bytes(100), "not with GGUF"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_what_is_no_gguf_is_recognised(tmp_path: Path, name: str) -> None:
    content, complaint = HEADERS[name]
    assert complaint in message_for(tmp_path, content)


CLAIMS = {
    "key count": (b"GGUF" + pack("<IQQ", 3, 0, HUGE), "byte 16: metadata count: 9223372036854775808 is more"),
    "key count, small": (b"GGUF" + pack("<IQQ", 3, 0, 1000), "metadata count of 1000: needs the bytes up to"),
    "tensor count": (b"GGUF" + pack("<IQQ", 3, HUGE, 0), "byte 8: tensor count: 9223372036854775808 is more"),
    "tensor count, small": (b"GGUF" + pack("<IQQ", 3, 1000, 0), "tensor count of 1000: needs the bytes up to"),
    "key length": (file_of(pack("<Q", HUGE) + b"key" + bytes(20)), "byte 24: metadata key 1 of 1: a name of 92233720"),
    "key length, small": (file_of(pack("<Q", 60000) + bytes(99)), "metadata key 1 of 1: needs the bytes up to"),
    "string length": (file_of(text(b"k") + pack("<IQ", 8, HUGE)), "metadata k (string of 9223372036854775808 bytes)"),
    "array length": (file_of(text(b"k") + pack("<IIQ", 9, 4, HUGE)), "metadata k (array of 9223372036854775808)"),
    "array bytes": (file_of(text(b"k") + pack("<IIQ", 9, 0, 1 << 40)), "metadata k (array of 1099511627776)"),
    "strings": (file_of(text(b"k") + pack("<IIQ", 9, 8, HUGE)), "metadata k (array of 9223372036854775808)"),
    "string in array": (
        file_of(text(b"k") + pack("<IIQ", 9, 8, 2) + text(b"ok") + pack("<Q", HUGE) + bytes(8)),
        "byte 59: metadata k, string 1 of 2",
    ),
    "string in array, wrap": (
        file_of(text(b"k") + pack("<IIQ", 9, 8, 2) + pack("<Q", (1 << 64) - 8) + text(b"ok") + bytes(8)),
        "metadata k, string 0 of 2",
    ),
    "nested arrays": (file_of(text(b"k") + pack("<II", 9, 9) + pack("<QI", 1, 9) * 10_000), "an array of arrays"),
    "value type": (file_of(text(b"k") + pack("<IQ", 99, 0)), "byte 33: type of metadata k: 99 is not a type"),
    "element type": (file_of(text(b"k") + pack("<IIQ", 9, 99, 0)), "element type of metadata k: 99 is not a type"),
    "boolean": (file_of(text(b"k") + pack("<IB", 7, 7)), "byte 37: metadata k: 7 is not a boolean"),
    "boolean in array": (
        file_of(text(b"k") + pack("<IIQ3B", 9, 7, 3, 0, 1, 2)),
        "byte 51: metadata k: 2 is not a bool",
    ),
    "key not UTF-8": (file_of(uint32(b"\xff\xfe", 1)), "byte 32: metadata key 1 of 1: the name is not valid UTF-8"),
    "key twice": (file_of(uint32(b"k", 1), uint32(b"k", 2)), "byte 41: metadata key k: appears twice"),
    "alignment 0": (file_of(uint32(b"general.alignment", 0)), "general.alignment: 0 is not a power of two"),
    "alignment 3": (file_of(uint32(b"general.alignment", 3)), "general.alignment: 3 is not a power of two"),
    "alignment 2^30": (file_of(uint32(b"general.alignment", 1 << 30)), "general.alignment: 1073741824 is not a power"),
    "alignment float": (
        file_of(text(b"general.alignment") + pack("<If", 6, 32.0)),
        "general.alignment is of type float32, an integer was expected",
    ),
}
TENSORS = {
    "name length": ((pack("<Q", HUGE) + bytes(40),), "name of tensor 1 of 1: a name of 9223372036854775808 bytes"),
    "name not UTF-8": ((tensor(b"\xc3(", (1,)),), "name of tensor 1 of 1: the name is not valid UTF-8"),
    "name twice": ((tensor(b"t", (1,)), tensor(b"t", (1,), 0, 32)), "tensor t: appears twice"),
    "control name": ((tensor(b"\x1b[2J", (1,), 139),), r"tensor '\x1b[2J' uses quant type 139"),
    "dimensions": ((tensor(b"t", (1, 1, 1, 1, 1)),), "tensor t, number of dimensions: 5 (at most 4)"),
    "many dimensions": ((text(b"t") + pack("<I", 0xFFFFFFFF) + bytes(40),), "number of dimensions: 4294967295"),
    "zero": ((tensor(b"t", (4, 0)),), "tensor t, dimensions: [4, 0] has a zero"),
    "huge": ((tensor(b"t", (HUGE, HUGE, HUGE, HUGE)),), "tensor t ends at"),
    "wraps to little": ((tensor(b"t", (1 << 32, 1 << 32)),), "tensor t ends at"),
    "rows": ((tensor(b"t", (33, 1), 2),), "a row of 33 values is no whole number of Q4_0 blocks (32 values)"),
    "offset": ((tensor(b"t", (1,), 0, HUGE),), "tensor t ends at"),
    "unaligned": ((tensor(b"t", (1,), 0, 4),), "tensor t, data offset: 4 is not a multiple of 32"),
    "overlap": ((tensor(b"a", (16,)), tensor(b"b", (1,), 0, 32)), "tensors a and b overlap"),
    "same place": ((tensor(b"a", (1,)), tensor(b"b", (1,))), "tensors a and b overlap"),
    "type 4": ((tensor(b"t", (32,), 4),), "tensor t uses quant type 4 (Q4_2), not supported"),
    "type 31": ((tensor(b"t", (32,), 31),), "tensor t uses quant type 31 (Q4_0_4_4), not supported"),
    "type 15": ((tensor(b"t", (256,), 15),), "tensor t uses quant type 15 (Q8_K), not supported"),
    "type 139": ((tensor(b"t", (32,), 139),), "tensor t uses quant type 139 (unknown), not supported"),
    "type 255": ((tensor(b"t", (32,), 255),), "tensor t uses quant type 255 (unknown), not supported"),
    "type 2^32-1": ((tensor(b"t", (32,), 0xFFFFFFFF),), "tensor t uses quant type 4294967295 (unknown), not supported"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_huge_or_odd_claims_of_metadata(tmp_path: Path, name: str) -> None:
    content, complaint = CLAIMS[name]
    assert complaint in message_for(tmp_path, content)


@pytest.mark.parametrize("name", TENSORS)
def test_huge_or_odd_claims_of_tensors(tmp_path: Path, name: str) -> None:
    records, complaint = TENSORS[name]
    assert complaint in message_for(tmp_path, file_of(tensors=records, data=bytes(64)))


def test_a_file_with_an_unknown_type_still_shows_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of(uint32(b"k", 5), tensors=(tensor(b"t", (32, 2), 139), tensor(b"u", (4,), 0, 32))))
    with open_gguf(path, metadata_only=True) as file:
        assert file.metadata.integer("k") == 5
        assert [(entry.type_label, entry.nbytes) for entry in file.entries] == [("unknown", None), ("F32", 16)]
        assert file.tensors == {}


def test_integers_have_their_old_numbers_in_powerinfer_files(tmp_path: Path) -> None:
    records = tuple(tensor(b"%d" % number, (256,), number, 1024 * (number - 16)) for number in (16, 17, 18))
    for magic, labels in ((b"PWRI", ["I8", "I16", "I32"]), (b"GGUF", ["IQ2_XXS", "IQ2_XS", "IQ3_XXS"])):
        (tmp_path / "model.gguf").write_bytes(file_of(tensors=records, data=bytes(3072), magic=magic))
        with open_gguf(tmp_path / "model.gguf") as file:
            assert [found.quant_type.name for found in file.tensors.values()] == labels


def test_a_string_may_hold_anything(tmp_path: Path) -> None:
    open_bytes(tmp_path, file_of(text(b"k") + pack("<I", 8) + text(bytes(range(256)))))


def test_many_small_records_are_bounded(tmp_path: Path) -> None:
    assert "is more than any model has" in message_for(tmp_path, b"GGUF" + pack("<IQQ", 3, 70_000, 0) + bytes(100))
    strings = file_of(text(b"k") + pack("<IIQ", 9, 8, 20_000) + bytes(8 * 20_000 - 8) + pack("<Q", 99))
    assert "metadata k, string 19999 of 20000" in message_for(tmp_path, strings)


NUMBERS = [0, 1, 7, 31, 255, 65535, 1 << 31, (1 << 32) - 1, HUGE - 1, HUGE, (1 << 64) - 1]


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The valid file after a few changes: bytes, whole numbers, cuts, insertions."""
    content = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content) - 1))
        kind = draw(st.sampled_from(["byte", "number", "cut", "insert", "delete"]))
        if kind == "byte":
            content[place] = draw(st.integers(0, 255))
        elif kind == "number":
            number = draw(st.sampled_from(NUMBERS))
            content[place : place + 8] = pack("<Q", number)[: max(0, min(8, len(content) - place))]
        elif kind == "cut" and place:
            del content[place:]
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=9))
        elif kind == "delete":
            del content[place : place + draw(st.integers(1, 9))]
        if not content:
            break
    return bytes(content)


@settings(max_examples=400, deadline=None)
@given(content=mutations())
def test_mutated_files_open_or_say_why_not(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    with suppress(GGUFError):
        open_bytes(tmp_path_factory.getbasetemp(), content)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=400), version=st.sampled_from([2, 3]), counts=st.tuples(*[st.integers(0, 4)] * 2))
def test_random_bytes_after_the_magic(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, version: int, counts: tuple[int, int]
) -> None:
    with suppress(GGUFError):
        open_bytes(tmp_path_factory.getbasetemp(), b"GGUF" + pack("<IQQ", version, *counts) + content)
