"""kill -9 at any moment, then the same pull again: never a wrong file, never much fetched twice."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from localllm.store import NetworkOptions, Store
from localllm.store.pulling import pull_into

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from tests.localllm.store.conftest import FaultServer

KILLS = 50
CONNECTIONS = 4
BLOCK = 1 << 20
PIECE = 64 << 10  # what the server writes at a time
PATH = "/model.gguf"

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")


def start_pull(store: Store, url: str) -> BaseProcess:
    """A process of its own that pulls; forked from a server that has the modules loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["localllm.store", "httpx2"])
    process = context.Process(target=pull_into, args=(store, url), kwargs={"name": "victim"}, daemon=True)
    process.start()
    return process


def wait_for_bytes(server: FaultServer, process: BaseProcess, count: int) -> None:
    """Until the server has sent `count` more bytes, or the process is done."""
    goal = server.sent_bytes + count
    while server.sent_bytes < goal and process.is_alive():
        time.sleep(0.002)


def test_fifty_kills_never_give_a_wrong_file(server: FaultServer, store: Store, big_model: bytes) -> None:
    url = f"{server.add(PATH, big_model)}#sha256={hashlib.sha256(big_model).hexdigest()}"
    server.fail_always(PATH, slow=0.001)
    chance = random.Random(3)
    finished = 0
    for _ in range(KILLS):
        process = start_pull(store, url)
        wait_for_bytes(server, process, chance.randrange(0, 3 * BLOCK))
        time.sleep(chance.uniform(0, 0.01))
        process.kill()
        process.join()
        if store.find("victim") is not None:
            finished += 1
            assert store.path_of(store.models()[0]).read_bytes() == big_model
            store.remove("victim")
    assert finished < KILLS // 2
    manifest = pull_into(store, url, name="victim")
    assert store.path_of(manifest).read_bytes() == big_model
    assert store.partials() == []


def test_a_killed_pull_fetches_less_than_one_block_a_connection_twice(
    server: FaultServer, store: Store, big_model: bytes
) -> None:
    url = server.add(PATH, big_model)
    server.fail_always(PATH, slow=0.003)
    process = start_pull(store, url)
    wait_for_bytes(server, process, len(big_model) // 2)
    process.kill()
    process.join()
    time.sleep(0.1)
    server.always.clear()
    manifest = pull_into(store, url, name="victim", network=NetworkOptions(connections=CONNECTIONS))
    assert store.path_of(manifest).read_bytes() == big_model
    twice = server.sent_bytes - len(big_model)
    assert twice <= CONNECTIONS * (BLOCK + 8 * PIECE)


def test_two_pulls_of_one_model_share_one_download(server: FaultServer, store: Store, big_model: bytes) -> None:
    url = server.add(PATH, big_model)
    server.fail_always(PATH, slow=0.0005)
    first = start_pull(store, url)
    second = start_pull(store, url)
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert store.path_of(store.models()[0]).read_bytes() == big_model
    assert store.partials() == []
    assert server.sent_bytes == len(big_model)


def test_removing_while_another_process_pulls_leaves_a_whole_store(
    server: FaultServer, store: Store, big_model: bytes, model_bytes: bytes
) -> None:
    pull_into(store, server.add("/other.gguf", model_bytes), name="other")
    url = server.add(PATH, big_model)
    server.fail_always(PATH, slow=0.002)
    process = start_pull(store, url)
    wait_for_bytes(server, process, 2 * BLOCK)
    store.remove("other")
    store.remove_unused()
    assert [item.name for item in store.partials()] == ["victim"]
    with pytest.raises(Exception, match="another process"):
        store.remove_partial(store.partials()[0])
    process.join(60)
    assert process.exitcode == 0
    assert [manifest.name for manifest in store.models()] == ["victim"]
    assert store.path_of(store.models()[0]).read_bytes() == big_model
