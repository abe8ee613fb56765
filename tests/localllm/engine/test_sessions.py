"""Conversations saved to disk: the next process goes on without computing the prompt; bad files are refused."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_executor import IntegerExecutor

from localllm.cache import PoolSizes
from localllm.cache.session import DIGEST, MAGIC
from localllm.completion import collect
from localllm.engine import Engine, Request, model_fingerprint
from localllm.errors import SessionError
from localllm.kernels.selective import QuerySparse
from localllm.sampling import SamplingParameters
from scripts import complete

MakeEngine = Callable[..., Engine]
PROMPT = np.random.default_rng(2).integers(0, 256, 150).tolist()
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"window": 80},
    "quantised": {"kv_type": "q8", "pool": PoolSizes((30, 30), (30, 30), 32)},
    "quantised window": {"kv_type": "q8", "pool": PoolSizes((30, 30), (30, 30), 32, 2), "window": 96},
}


def test_a_session_of_another_kv_policy_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Keys of later layers depend on what earlier ones did not read."""
    first = make_engine(selective=QuerySparse(4, 20, 5))
    complete(first, PROMPT, max_tokens=4, ignore_eos=True)
    first.save_session(tmp_path / "chat", PROMPT, model="m")
    with pytest.raises(SessionError, match="another KV policy"):
        make_engine().restore_session(tmp_path / "chat", model="m")


def engine_of(make: MakeEngine, name: str, executor: IntegerExecutor | None = None) -> Engine:
    return make(executor or IntegerExecutor((None, 20)), **SETTINGS[name])


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_restored_chat_goes_on_without_its_prompt(make_engine: MakeEngine, tmp_path: Path, name: str) -> None:
    first = engine_of(make_engine, name)
    answer = complete(first, PROMPT, max_tokens=20, ignore_eos=True)
    conversation = [*PROMPT, *answer.ids]
    saved = first.save_session(tmp_path / "chat", conversation, model="m")
    turn = [*conversation, 1, 2, 3]
    expected = complete(first, turn, max_tokens=20, ignore_eos=True)

    executor = IntegerExecutor((None, 20))
    second = engine_of(make_engine, name, executor)
    assert second.restore_session(tmp_path / "chat", model="m") == conversation[:saved]
    assert second.usage().pages.held == 0
    found = complete(second, turn, max_tokens=20, ignore_eos=True)
    assert found.ids == expected.ids == complete(engine_of(make_engine, name), turn, max_tokens=20, ignore_eos=True).ids
    assert found.usage.cached_tokens == expected.usage.cached_tokens
    assert sum(len(step.tokens) for step in executor.steps) == len(turn) - found.usage.cached_tokens + 19
    if name != "quantised":
        assert saved == len(conversation) - 1 == found.usage.cached_tokens


def test_sessions_are_saved_while_others_answer(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(parallel=2)
    complete(engine, PROMPT, max_tokens=1)
    running = engine.submit(Request([5] * 20, SamplingParameters(max_tokens=200, ignore_eos=True)))
    assert engine.save_session(tmp_path / "chat", PROMPT, model="m") == 150
    assert len(collect(running).ids) == 200


def test_what_is_not_cached_cannot_be_saved(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="nothing of this conversation"):
        make_engine().save_session(tmp_path / "chat", PROMPT, model="m")
    engine = make_engine()
    complete(engine, PROMPT, max_tokens=1)
    with pytest.raises(SessionError, match="more than the 100 bytes"):
        engine.save_session(tmp_path / "chat", PROMPT, model="m", most_bytes=100)
    with pytest.raises(SessionError, match="cannot be saved"):
        engine.save_session(tmp_path / "missing" / "chat", PROMPT, model="m")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_file_that_was_there(make_engine: MakeEngine, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    engine = make_engine(IntegerExecutor((None, 20)))
    complete(engine, PROMPT[:20], max_tokens=1)
    engine.save_session(tmp_path / "chat", PROMPT[:20], model="m")
    before = (tmp_path / "chat").read_bytes()
    complete(engine, PROMPT, max_tokens=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))  # no file of this process may be longer
    try:
        with pytest.raises(SessionError, match=r"cannot be saved to .*chat"):
            engine.save_session(tmp_path / "chat", PROMPT, model="m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]
    assert (tmp_path / "chat").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "model", "what"),
    [
        ({}, "other", "another model"),
        ({"window": 80}, "m", r"ends when it is full \(here a window of 80 tokens"),
        ({"context": 112, "context_policy": "window"}, "m", r"\(here a context of 112 tokens"),
        ({"kv_type": "f32"}, "m", r"a KV cache of f16 \(here f32"),
        (
            {"kv_type": "q8", "pool": PoolSizes((30, 30), (30, 30), 32)},
            "m",
            r"with a KV cache of f16 \(here q8, see --kv\), so",
        ),
        ({"executor": (None,)}, "m", "another model"),
    ],
)
def test_a_foreign_session_is_refused(
    make_engine: MakeEngine, tmp_path: Path, changes: dict[str, Any], model: str, what: str
) -> None:
    first = make_engine(IntegerExecutor((None, 20)))
    complete(first, PROMPT, max_tokens=1)
    first.save_session(tmp_path / "chat", PROMPT, model="m")
    options = dict(changes)
    second = make_engine(IntegerExecutor(options.pop("executor", (None, 20))), **options)
    with pytest.raises(SessionError, match=what):
        second.restore_session(tmp_path / "chat", model=model)


def saved_bytes(make: MakeEngine, folder: Path, name: str) -> bytes:
    engine = engine_of(make, name)
    complete(engine, PROMPT, max_tokens=1)
    engine.save_session(folder / "chat", PROMPT, model="m")
    return (folder / "chat").read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_refused(make_engine: MakeEngine, tmp_path: Path, data: st.DataObject) -> None:
    good = saved_bytes(make_engine, tmp_path, "full")
    bad = bytearray(good)
    if data.draw(st.booleans()):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del bad[data.draw(st.integers(0, len(bad) - 1)) :]
    (tmp_path / "bad").write_bytes(bad)
    engine = engine_of(make_engine, "full")
    with pytest.raises(SessionError):
        engine.restore_session(tmp_path / "bad", model="m")
    assert engine.usage().pages.held == engine.usage().pages.cached == 0


FORGED: list[dict[str, Any]] = [
    {"length": 149},
    {"length": -1},
    {"length": True},
    {"length": 10**9},
    {"sink_pages": 5},
    {"sink_pages": 10**6},
    {"evicted_at": 16},
    {"evicted_at": 144},
    {"sealed": 9},
    {"sealed": 2},
    {"tables": []},
    {"tables": None},
    {"tables": [{"dropped": 0, "letters": "x", "page_bytes": [1]}] * 2},
    {"tables": [{"dropped": 0, "letters": "", "page_bytes": []}] * 2},
    {"key": None},
    {"letters": "m"},
    {"letters": "s"},
]


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("change", FORGED, ids=str)
def test_forged_numbers_are_refused(make_engine: MakeEngine, tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    good = saved_bytes(make_engine, tmp_path, name)
    start = len(MAGIC) + 4
    (size,) = struct.unpack_from("<I", good, len(MAGIC))
    header = json.loads(good[start : start + size])
    before = json.dumps(header)
    if "letters" in change:
        for table in header["tables"]:
            table["letters"] = change["letters"] * len(table["letters"])
    else:
        header.update(change)
    if json.dumps(header) == before:
        pytest.skip("that is what it says anyway")
    text = json.dumps(header).encode()
    body = MAGIC + struct.pack("<I", len(text)) + text + good[start + size : -DIGEST]
    (tmp_path / "forged").write_bytes(body + hashlib.blake2b(body, digest_size=DIGEST).digest())
    engine = engine_of(make_engine, name)
    with pytest.raises(SessionError):
        engine.restore_session(tmp_path / "forged", model="m")
    assert engine.usage().pages.held == engine.usage().pages.cached == 0


def test_no_room_is_said(make_engine: MakeEngine, tmp_path: Path) -> None:
    saved_bytes(make_engine, tmp_path, "full")
    engine = make_engine(IntegerExecutor((None, 20)), pool=PoolSizes((5, 5)))
    with pytest.raises(SessionError, match="no room"):
        engine.restore_session(tmp_path / "chat", model="m")
    with pytest.raises(SessionError, match="cannot be read"):
        engine.restore_session(tmp_path / "nothing", model="m")


def test_fingerprints_tell_files_apart(tmp_path: Path) -> None:
    contents = [b"", b"a", b"b", b"a" * 10_000, b"a" * 9_999 + b"b"]
    prints = set()
    for index, content in enumerate(contents):
        (tmp_path / str(index)).write_bytes(content)
        prints.add(model_fingerprint(tmp_path / str(index)))
    assert len(prints) == len(contents)
