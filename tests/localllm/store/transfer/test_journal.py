"""The journal survives torn writes and wrong bytes, and never vouches for other content."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.store.transfer.journal import Identity, Journal, Span

BLOCK = 16
IDENTITY = Identity("a" * 64, 100, None, '"tag"', None)


def filled(path: Path, blocks: dict[int, int], identity: Identity = IDENTITY) -> Journal:
    journal = Journal.open(path, identity, BLOCK)
    for index, checksum in blocks.items():
        journal.record(index, checksum)
    journal.close()
    return journal


@given(
    blocks=st.dictionaries(st.integers(0, 6), st.integers(0, 2**32 - 1)),
    cut=st.integers(0, 200),
    flips=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 255)), max_size=3),
)
def test_a_torn_or_altered_journal_only_ever_loses_blocks(
    blocks: dict[int, int], cut: int, flips: list[tuple[int, int]]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        filled(path, blocks)
        content = bytearray(path.read_bytes())
        head = content.index(b"\n") + 1
        for offset, mask in flips:
            if head + offset < len(content):
                content[head + offset] ^= mask
        path.write_bytes(content[: max(head, len(content) - cut)])
        again = Journal.open(path, IDENTITY, BLOCK)
        assert again.blocks.items() <= blocks.items()
        assert again.done_bytes == sum(again.span_of(i).stop - again.span_of(i).start for i in again.blocks)
        again.record(0, 7)  # records after a torn one are read again
        again.close()
        assert Journal.open(path, IDENTITY, BLOCK).blocks[0] == 7


@given(done=st.sets(st.integers(0, 6)), longest=st.integers(1, 64))
def test_what_is_missing_is_exactly_what_is_not_recorded(done: set[int], longest: int) -> None:
    with TemporaryDirectory() as folder:
        journal = filled(Path(folder) / "journal", dict.fromkeys(done, 0))
        covered = set()
        for span in journal.missing(longest):
            assert span.start % BLOCK == 0
            assert span.stop - span.start <= max(longest, BLOCK)
            covered |= set(range(span.start, span.stop))
        expected = {byte for byte in range(100) if byte // BLOCK not in done}
        assert covered == expected


def test_blocks_that_differ_on_disk_are_found(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(range(100)))
    blocks = {i: zlib.crc32(bytes(range(100))[i * BLOCK : (i + 1) * BLOCK]) for i in range(7)}
    journal = filled(tmp_path / "journal", blocks)
    assert journal.damaged(data) == []
    data.write_bytes(bytes(range(50)) + bytes(50))
    assert journal.damaged(data) == [3, 4, 5, 6]
    journal.forget([3, 4])
    assert set(Journal.open(tmp_path / "journal", IDENTITY, BLOCK).blocks) == {0, 1, 2, 5, 6}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"etag": '"other"'}, False),
        ({"size_bytes": 99}, False),
        ({"url_sha256": "b" * 64}, False),
        ({"sha256": "c" * 64}, True),
    ],
)
def test_identity_without_a_hash(changes: dict[str, object], same: bool) -> None:
    assert IDENTITY.same_content(replace(IDENTITY, **changes)) is same  # type: ignore[arg-type]


def test_a_hash_outweighs_address_and_validator_and_nothing_vouches_for_nothing() -> None:
    hashed = replace(IDENTITY, sha256="d" * 64)
    assert hashed.same_content(replace(hashed, url_sha256="e" * 64, etag=None))
    assert not hashed.same_content(replace(hashed, sha256="e" * 64))
    bare = replace(IDENTITY, etag=None)
    assert not bare.same_content(bare)
    dated = replace(bare, last_modified="Mon, 30 Nov 2026 00:00:00 GMT")
    assert dated.same_content(dated)


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[]\n", b"not json\n", b'{"schema": 1, "block_bytes": 16}\n', b"\xff"]
)
def test_unreadable_journals_start_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal").write_bytes(content)
    journal = Journal.open(tmp_path / "journal", IDENTITY, BLOCK)
    assert journal.blocks == {}
    assert journal.missing(1000) == [Span(0, 100)]
