"""How many pages a cache needs: the numbers that the planner shows and the executor allocates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.kv_layout import PAGE_SIZE, QUANTISED, SEAL_TOKENS

from .cache import PoolSizes
from .full import FullPolicy
from .native_window import NativeWindowPolicy, native_windows

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVLayout, KVType

    from .policy import Policy

PRECISE_PAGES = 8  # sink pages of a sequence that stay in full precision


def pool_sizes(layout: KVLayout, policy: Policy, kv_type: KVType, *, parallel: int, step_rows: int) -> PoolSizes:
    """Pages per group for `parallel` sequences at their longest, while a step adds at most `step_rows` rows to one."""
    seal = SEAL_TOKENS if kv_type in QUANTISED else 0
    peak = policy.peak_tokens(1)
    main, staging = [], []
    for window in native_windows(layout, policy):
        deciding = policy if window is None else NativeWindowPolicy(window)
        copy_source = 1  # a page is held until its copy is made
        pages = -(-deciding.peak_tokens(min(step_rows, peak)) // PAGE_SIZE) + copy_source
        main.append(parallel * pages)
        recent = 2 * seal // PAGE_SIZE + 1  # while pages are sealed, the next ones are written already
        staging.append(parallel * (PRECISE_PAGES + recent))
    return PoolSizes(tuple(main), tuple(staging) if seal else (), seal, PRECISE_PAGES)


def bytes_of_layers(layout: KVLayout, kv_type: KVType, *, context: int, step_rows: int) -> list[int]:
    """What the executor allocates for each layer, when one sequence of `context` tokens is to have room."""
    sizes = pool_sizes(layout, FullPolicy(context), kv_type, parallel=1, step_rows=step_rows)
    staging = sizes.staging or (0,) * len(sizes.main)
    result = []
    for index, layer in enumerate(layout.layers):
        group = layout.group_of(index)
        result.append(sizes.main[group] * layer.page_bytes(kv_type) + staging[group] * layer.page_bytes("f16"))
    return result
