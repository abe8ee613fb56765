"""Starts servers for tests, and checks afterwards that each ends by itself and leaves no page in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from running_server import Running, Serve, start_server


def _end(one: Running) -> None:
    one.client.close()
    if one.thread.is_alive():
        one.stop()
    for model in one.models:
        assert model.closed
        usage = model.engine.usage()
        assert (usage.running, usage.waiting) == (0, 0)
        assert usage.pages.held == 0
    assert one.active == 0


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of one's own."""
    running: list[Running] = []

    def start(**options: Any) -> Running:
        running.append(start_server(**options))
        return running[-1]

    yield start
    for one in running:
        _end(one)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Running]:
    """One server for a module's tests."""
    one = start_server()
    yield one
    _end(one)


@pytest.fixture
def server(shared_server: Running) -> Running:
    """The module's server, with a model that has nothing to say yet."""
    shared_server.model.executor.reset()
    return shared_server
