"""Every way a server can misbehave ends in a verified file or a clear error."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from localllm.errors import DownloadError
from localllm.store.events import FileProgress, Note, Phase, Retrying
from localllm.store.transfer import Client, FetchedFile, NetworkOptions, RemoteFile, Transfer
from localllm.store.transfer.client import HttpStatusError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from localllm.store.events import PullEvent
    from tests.localllm.store.conftest import FaultServer

BLOCK = 256 << 10
PATH = "/model.gguf"


class Puller:
    """Runs transfers of one URL into one folder and keeps the events."""

    def __init__(self, folder: Path, network: NetworkOptions) -> None:
        self.folder = folder
        self.network = network
        self.events: list[PullEvent] = []

    def run(
        self,
        url: str,
        sha256: str | None = None,
        size_bytes: int | None = None,
        report: Callable[[PullEvent], None] | None = None,
    ) -> FetchedFile:
        remote = RemoteFile(url, "model.gguf", size_bytes, sha256)
        with Client(self.network) as client:
            events = report or self.events.append
            return Transfer(client, remote, self.folder, events, block_bytes=BLOCK, span_bytes=4 * BLOCK).run()

    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]


@pytest.fixture
def puller(tmp_path: Path, network: NetworkOptions) -> Puller:
    return Puller(tmp_path / "partial", network)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_arrives_whole_over_several_connections(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    found = puller.run(url, digest(noise), len(noise))
    assert found.path.read_bytes() == noise
    assert (found.sha256, found.size_bytes, found.fetched_bytes) == (digest(noise), len(noise), len(noise))
    assert len(server.bodies(PATH)) == 5
    last = [event for event in puller.events if isinstance(event, FileProgress)][-1]
    assert (last.done_bytes, last.total_bytes) == (len(noise), len(noise))


def test_without_a_published_hash_the_file_is_hashed_anyway(server: FaultServer, puller: Puller, noise: bytes) -> None:
    found = puller.run(server.add(PATH, noise))
    assert (found.sha256, found.expected) == (digest(noise), None)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK, 4 * BLOCK + 1])
def test_odd_sizes(server: FaultServer, puller: Puller, noise: bytes, size: int) -> None:
    content = noise[:size]
    assert puller.run(server.add(PATH, content), digest(content)).path.read_bytes() == content


def test_a_cut_goes_on_from_the_byte_where_it_was(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 6, cut_after=100_001)
    found = puller.run(url, digest(noise))
    assert found.path.read_bytes() == noise
    assert found.fetched_bytes == len(noise)
    assert any(isinstance(event, Retrying) for event in puller.events)


def test_a_server_that_cuts_every_answer_short_still_delivers(
    server: FaultServer, puller: Puller, noise: bytes
) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, longest_range=300_000)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_cuts_without_any_byte_end_in_an_error_that_keeps_the_rest(
    server: FaultServer, puller: Puller, noise: bytes
) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 50, cut_after=0)
    with pytest.raises(DownloadError, match="4 tries") as caught:
        puller.run(url, digest(noise))
    assert "run the same command again" in str(caught.value)
    server.once.clear()
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_one_flipped_byte_is_found_and_only_a_part_fetched_again(
    server: FaultServer, puller: Puller, noise: bytes
) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 5, flip_at=200_000)
    found = puller.run(url, digest(noise))
    assert found.path.read_bytes() == noise
    assert any(isinstance(event, Phase) and "bad part" in event.text for event in puller.events)
    assert found.fetched_bytes <= 2 * len(noise)


def test_the_search_for_the_bad_part_stops_when_it_is_found(server: FaultServer, puller: Puller, noise: bytes) -> None:
    content = noise * 4
    url = server.add(PATH, content)
    server.fail(PATH, 17, flip_at=200_000)
    puller.network = replace(puller.network, connections=1)
    found = puller.run(url, digest(content))
    assert found.path.read_bytes() == content
    assert found.fetched_bytes == len(content) + 4 * BLOCK


def test_a_wrong_file_is_an_error_with_both_hashes_and_leaves_nothing(
    server: FaultServer, puller: Puller, noise: bytes
) -> None:
    url = server.add(PATH, noise)
    with pytest.raises(DownloadError) as caught:
        puller.run(url, "0" * 64)
    assert "0" * 64 in str(caught.value)
    assert digest(noise) in str(caught.value)
    assert not (puller.folder / "data").exists()


def test_a_wrong_size_is_an_error_before_anything_is_fetched(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    with pytest.raises(DownloadError, match=str(len(noise))) as caught:
        puller.run(url, digest(noise), size_bytes=len(noise) + 1)
    assert str(len(noise) + 1) in str(caught.value)
    assert server.bodies(PATH) == []


def test_an_empty_file_is_an_error(server: FaultServer, puller: Puller) -> None:
    with pytest.raises(DownloadError, match="empty file"):
        puller.run(server.add(PATH, b""))


@pytest.mark.parametrize(
    "wrong",
    [{"lie_length": 1000}, {"lie_length": -1000}, {"shift_range": 100}, {"stall_after": 50_000}],
    ids=["promises more", "promises less", "other range", "stalls"],
)
def test_lies_and_stalls_are_passed_over(
    server: FaultServer, puller: Puller, noise: bytes, wrong: dict[str, int]
) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 2, **wrong)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_server_is_asked_again(server: FaultServer, puller: Puller, noise: bytes, status: int) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 3, status=status)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise
    assert any(isinstance(event, Retrying) and str(status) in event.reason for event in puller.events)


def test_retry_after_is_honoured(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, status=429, headers={"Retry-After": "1"})
    puller.run(url, digest(noise))
    waits = [event.wait_seconds for event in puller.events if isinstance(event, Retrying)]
    assert waits == [1.0]


@pytest.mark.parametrize(
    ("status", "text"), [(401, "login"), (403, "refuses"), (404, "no such file"), (410, "no longer"), (451, "451")]
)
def test_a_refusal_is_final_and_clear(
    server: FaultServer, puller: Puller, noise: bytes, status: int, text: str
) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, status=status)
    with pytest.raises(HttpStatusError, match=text) as caught:
        puller.run(url)
    assert caught.value.status == status
    assert len(server.requests) == 1


def test_a_refusal_in_the_middle_is_final_too(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 8, status=403)
    with pytest.raises(HttpStatusError, match="refuses"):
        puller.run(url, digest(noise))


def test_a_server_without_ranges_sends_the_file_whole(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_a_cut_without_ranges_starts_again_and_keeps_blocks(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True)
    server.fail(PATH, 2, ignore_range=True, cut_after=3_000_000)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_ranges_that_stop_working_in_the_middle(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 5, ignore_range=True)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise
    assert any("whole files only" in note for note in puller.notes())


def test_a_flipped_byte_without_ranges_is_repaired_too(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True)
    server.fail(PATH, ignore_range=True, flip_at=1_000_000)
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_without_a_length_the_stream_is_taken_to_its_end(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True, no_length=True)
    found = puller.run(url)
    assert found.path.read_bytes() == noise


def test_without_a_length_a_busy_server_is_asked_again(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True, no_length=True)
    server.fail(PATH, 2, status=503)
    assert puller.run(url).path.read_bytes() == noise
    assert sum(isinstance(event, Retrying) for event in puller.events) == 2


def test_without_a_length_a_cut_is_caught_by_the_hash(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, ignore_range=True, no_length=True, cut_after=1_000_000)
    with pytest.raises(DownloadError, match=digest(noise)):
        puller.run(url, digest(noise))


def test_a_file_that_changes_in_the_middle_is_started_again(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    other = bytes(reversed(noise))
    switched = threading.Event()

    def switch(event: PullEvent) -> None:
        puller.events.append(event)
        if isinstance(event, FileProgress) and event.done_bytes and not switched.is_set():
            switched.set()
            server.add(PATH, other)

    server.fail_always(PATH, slow=0.02)
    found = puller.run(url, report=switch)
    assert switched.is_set()
    assert found.path.read_bytes() == other
    assert any("changed on the server" in note for note in puller.notes())


def test_a_file_that_always_changes_is_an_error(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 100, etag='"other"')
    with pytest.raises(DownloadError, match="changes on the server"):
        puller.run(url)


def test_a_full_hash_outweighs_a_changed_etag(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail(PATH, 20, cut_after=0)
    server.once[PATH][2:2] = []
    with pytest.raises(DownloadError):
        puller.run(url, digest(noise))
    server.once.clear()
    server.add(PATH, noise, etag='"another mirror"')
    assert puller.run(url, digest(noise)).path.read_bytes() == noise


def test_compressed_answers_are_refused(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    server.fail_always(PATH, headers={"Content-Encoding": "gzip"})
    with pytest.raises(DownloadError, match="compressed"):
        puller.run(url)


def test_the_bandwidth_limit_holds(server: FaultServer, puller: Puller, noise: bytes) -> None:
    content = noise[: 6 * BLOCK]
    url = server.add(PATH, content)
    puller.network = replace(puller.network, bytes_per_second=2_000_000.0)
    events: list[float] = []
    import time

    started = time.monotonic()
    puller.run(url, digest(content), report=lambda event: events.append(time.monotonic() - started))
    assert events[-1] >= len(content) / 2_000_000 - 0.5


def test_offline_opens_no_socket(server: FaultServer, puller: Puller, noise: bytes) -> None:
    url = server.add(PATH, noise)
    puller.network = replace(puller.network, offline=True)
    with pytest.raises(DownloadError, match="offline"):
        puller.run(url)
    assert server.requests == []


def test_too_little_disk_is_an_error_with_both_numbers(
    server: FaultServer, puller: Puller, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add(PATH, noise)
    monkeypatch.setattr("localllm.store.disk.free_bytes", lambda folder: 1_500_000)
    with pytest.raises(DownloadError, match=r"4\.5 MB more, but only 1\.5 MB are free"):
        puller.run(url)
    assert server.bodies(PATH) == []
