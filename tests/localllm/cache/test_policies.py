"""What policies decide, as integers."""

from __future__ import annotations

from typing import get_args

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.cache import POLICIES, ContextPolicy
from localllm.cache.native_window import NativeWindowPolicy
from localllm.cache.sink_window import SinkWindowPolicy
from localllm.cli.run import run
from localllm.errors import ConfigurationError, RequestError
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.settings import KINDS


def test_every_policy_of_the_table_can_be_asked_for() -> None:
    (option,) = [option for option in run.params if option.name == "context_policy"]
    assert isinstance(option.type, click.Choice)
    assert set(POLICIES) == set(get_args(ContextPolicy)) == set(option.type.choices)
    assert {KINDS["context_policy"].parse(name) for name in POLICIES} == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
@given(bound=st.integers(48, 400), tokens=st.integers(0, 60))
def test_every_policy_keeps_what_it_promises(name: ContextPolicy, bound: int, tokens: int) -> None:
    """What `Policy` says: drops never fall, leave the sinks, come before the room is gone, and bound what is held."""
    policy = POLICIES[name](bound, None)
    try:
        sinks = policy.sink_pages(tokens)
    except RequestError:
        return
    length = before = 0
    for _ in range(60):
        dropped, room = policy.dropped_pages(length, sinks), policy.room(length, sinks)
        assert dropped >= before
        assert dropped == 0 or sinks * PAGE_SIZE < length + 1 - dropped * PAGE_SIZE
        if not room:  # only a policy that drops nothing may be full
            assert (name, length) == ("error", bound)
            return
        assert length + room - dropped * PAGE_SIZE <= policy.peak_tokens(room)
        before, length = dropped, length + room


def test_a_full_context_has_no_room() -> None:
    policy = POLICIES["error"](64, None)
    assert [policy.room(length, 0) for length in (0, 63, 64, 65)] == [64, 1, 0, 0]
    assert policy.dropped_pages(64, 0) == 0


@pytest.mark.parametrize("keep", [60, 63, 64, 100, 33])
def test_a_window_full_of_sinks_is_refused(keep: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{keep} sink tokens do not fit into a window of 64"):
        POLICIES["window"](64, keep)


@pytest.mark.parametrize(("window", "sinks"), [(47, None), (0, 4), (256, -1)])
def test_nonsense_is_refused(window: int, sinks: int | None) -> None:
    with pytest.raises(ConfigurationError):
        POLICIES["window"](window, sinks)


def test_sinks_are_the_request_s_own_unless_configured() -> None:
    assert [POLICIES["window"](128, None).sink_pages(tokens) for tokens in (0, 4, 16, 17, 96)] == [1, 1, 1, 2, 6]
    assert POLICIES["window"](128, 20).sink_pages(90) == 2
    with pytest.raises(RequestError, match="has 97 tokens; a window of 128 tokens can keep 96"):
        POLICIES["window"](128, None).sink_pages(97)


@given(window=st.integers(48, 400), sinks=st.integers(0, 100))
def test_the_window_slides_in_whole_pages_and_seldom(window: int, sinks: int) -> None:
    try:
        policy = SinkWindowPolicy(window, sinks)
    except ConfigurationError:
        assert sinks > window // PAGE_SIZE * PAGE_SIZE - 32
        return
    pages = policy.sink_pages(0)
    capacity = window // PAGE_SIZE * PAGE_SIZE
    before = 0
    for length in range(5 * window):
        dropped = policy.dropped_pages(length, pages)
        kept = length + 1 - dropped * PAGE_SIZE  # with the row at `length`
        assert pages * PAGE_SIZE < kept <= capacity or dropped == 0
        assert policy.room(length, pages) == capacity - kept + 1 > 0
        if dropped != before:
            assert length % PAGE_SIZE == 0
            assert 4 * (dropped - before) >= capacity // PAGE_SIZE - pages  # a quarter of what may move, or more
            assert length + 1 - before * PAGE_SIZE > capacity  # only when it is full
        before = dropped


@given(window=st.integers(1, 100), length=st.integers(0, 500))
def test_a_native_window_drops_only_what_nobody_sees(window: int, length: int) -> None:
    policy = NativeWindowPolicy(window)
    first_seen = max(0, length - window + 1)
    dropped = policy.dropped_pages(length, 0)
    assert dropped * PAGE_SIZE <= first_seen < (dropped + 1) * PAGE_SIZE
