"""Who is next: by priority, then calls of which nothing runs yet, then by turns between clients and their calls."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .job import Job

Calls = OrderedDict[str, deque["Job"]]


class FairQueue:
    """Waiting jobs. Of one priority, a call that has no job running goes before those that have; among such equals
    clients take turns, and so do the calls of a client."""

    def __init__(self) -> None:
        self._returned: list[Job] = []  # preempted: they had their turn already
        self._levels: dict[int, OrderedDict[str, Calls]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        yield from self._returned
        for level in sorted(self._levels, reverse=True):
            for calls in self._levels[level].values():
                for jobs in calls.values():
                    yield from jobs

    def push(self, job: Job) -> None:
        """A new job, last of its call's."""
        self._count += 1
        level = self._levels.setdefault(job.request.priority, OrderedDict())
        level.setdefault(job.request.client, OrderedDict()).setdefault(job.call, deque()).append(job)

    def put_back(self, job: Job) -> None:
        """A job that ran already: the first of its priority, unless its call runs elsewhere."""
        self._count += 1
        self._returned.append(job)
        self._returned.sort(key=lambda returned: returned.precedence)

    def first(self, running: Mapping[str, int] | None = None) -> Job | None:
        """The job whose turn it is; it stays in the queue. `running`: how many jobs of each call run now."""
        running = running or {}
        highest = max([job.request.priority for job in self._returned[:1]] + list(self._levels), default=None)
        if highest is None:
            return None
        best: Job | None = None
        least = 0
        for job in self._heads(highest):
            busy = running.get(job.call, 0)
            if best is None or busy < least:
                best, least = job, busy
            if not least:
                break
        return best

    def _heads(self, priority: int) -> Iterator[Job]:
        """The first job of each call, in the order of their turns."""
        yield from (job for job in self._returned if job.request.priority == priority)
        for calls in self._levels.get(priority, {}).values():
            yield from (jobs[0] for jobs in calls.values())

    def take(self, job: Job) -> None:
        """The job leaves the queue; its client, and its call among the client's, go to the end of the line."""
        self._count -= 1
        if job in self._returned:
            self._returned.remove(job)
            return
        level = self._levels[job.request.priority]
        calls = level[job.request.client]
        calls[job.call].remove(job)
        if calls[job.call]:
            calls.move_to_end(job.call)
        else:
            del calls[job.call]
        if calls:
            level.move_to_end(job.request.client)
        else:
            del level[job.request.client]
        if not level:
            del self._levels[job.request.priority]
