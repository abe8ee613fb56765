"""Who is next: by priority, then fair between clients, then in order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .job import Job


class FairQueue:
    """Waiting jobs. Each client's first job gets its turn before another client's second one."""

    def __init__(self) -> None:
        self._returned: list[Job] = []  # preempted: they had their turn already
        self._levels: dict[int, OrderedDict[str, deque[Job]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        yield from self._returned
        for level in sorted(self._levels, reverse=True):
            for jobs in self._levels[level].values():
                yield from jobs

    def push(self, job: Job) -> None:
        """A new job, last of its client's."""
        self._count += 1
        level = self._levels.setdefault(job.request.priority, OrderedDict())
        level.setdefault(job.request.client, deque()).append(job)

    def put_back(self, job: Job) -> None:
        """A job that ran already: the first of its priority."""
        self._count += 1
        self._returned.append(job)
        self._returned.sort(key=lambda returned: returned.precedence)

    def first(self) -> Job | None:
        """The job whose turn it is; it stays in the queue."""
        level = max(self._levels, default=None)
        if self._returned and (level is None or self._returned[0].request.priority >= level):
            return self._returned[0]
        return None if level is None else next(iter(self._levels[level].values()))[0]

    def take(self, job: Job) -> None:
        """The job leaves the queue; its client goes to the end of the line."""
        self._count -= 1
        if job in self._returned:
            self._returned.remove(job)
            return
        level = self._levels[job.request.priority]
        jobs = level[job.request.client]
        jobs.remove(job)
        if jobs:
            level.move_to_end(job.request.client)
        else:
            del level[job.request.client]
        if not level:
            del self._levels[job.request.priority]
