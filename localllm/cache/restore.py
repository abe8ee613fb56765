"""Page tables from numbers in a file: nothing is allocated before they are known to be such as a cache makes itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import LocalLLMError, SessionError
from localllm.kernels.kv_layout import PAGE_SIZE

from .sequence import CachedSequence, PageTable, token_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cache import KVCache

IMPOSSIBLE = "the saved session is damaged: its pages cannot be those of its tokens"


@dataclass(frozen=True, slots=True)
class SavedTables:
    """A sequence as numbers. `tables`: per group the dropped pages, and a letter for each page that is there: "s" in
    the staging pool, "m" in the main one."""

    sink_pages: int
    sealed: int
    evicted_at: int
    tables: tuple[tuple[int, str], ...]


def restore(cache: KVCache, tokens: Sequence[int], saved: SavedTables) -> CachedSequence:
    """A sequence of `tokens` with a page for each of their blocks, to be filled by the caller.

    SessionError, with nothing taken, when the numbers cannot be or there are too few free pages.
    """
    _check(cache, len(tokens), saved)
    for (_, letters), group in zip(saved.tables, cache.groups, strict=True):
        if group.main.available < letters.count("m") or group.staging.available < letters.count("s"):
            raise SessionError("there is no room in the KV cache for the saved session")
    tables = []
    for (dropped, letters), group, window in zip(saved.tables, cache.groups, cache.windows, strict=True):
        table = PageTable(saved.sink_pages if window is None else 0)
        table.skip(dropped)
        for letter in letters:
            table.append(group.main.allocate() if letter == "m" else ~group.staging.allocate())
        tables.append(table)
    root = cache.root(saved.sink_pages)
    sequence = CachedSequence(token_array(tokens), tuple(tables), saved.sink_pages, root, len(tokens))
    sequence.sealed, sequence.evicted_at = saved.sealed, saved.evicted_at
    if saved.evicted_at and cache.policy_group is not None:
        sequence.evicted_tokens = saved.tables[cache.policy_group][0] * PAGE_SIZE
    return sequence


def _check(cache: KVCache, length: int, saved: SavedTables) -> None:
    blocks = -(-length // PAGE_SIZE)
    try:
        right = cache.sink_pages(saved.sink_pages * PAGE_SIZE) == saved.sink_pages
    except LocalLLMError as error:
        raise SessionError(IMPOSSIBLE) from error
    right &= length > 0 and cache.policy.room(length - 1, saved.sink_pages) > 0 and saved.evicted_at <= length
    if not cache.seal_tokens:
        right &= saved.sealed == 0
    else:
        behind = length - saved.sealed * PAGE_SIZE
        right &= 0 <= behind <= cache.seal_tokens and saved.sealed * PAGE_SIZE % cache.seal_tokens == 0
    if not right or len(saved.tables) != len(cache.groups):
        raise SessionError(IMPOSSIBLE)
    for (dropped, letters), group, window in zip(saved.tables, cache.groups, cache.windows, strict=True):
        sinks = saved.sink_pages if window is None else 0
        due = [group.policy.dropped_pages(at, sinks) for at in (length - 1, length)]
        if window is None:
            last = saved.evicted_at  # where the last drop took place, exactly
            before, after = (group.policy.dropped_pages(max(0, at), sinks) for at in (last - 1, last))
            right &= dropped in due and dropped == after and (before < after if last else dropped == 0)
        else:
            right &= dropped <= due[1]
        present = [*range(min(sinks, blocks)), *range(sinks + dropped, blocks)] if dropped else [*range(blocks)]
        precise = cache.precise_pages(saved.sink_pages)
        expected = "".join(
            "s" if cache.seal_tokens and (block < precise or block >= saved.sealed) else "m" for block in present
        )
        if not right or letters != expected:
            raise SessionError(IMPOSSIBLE)
