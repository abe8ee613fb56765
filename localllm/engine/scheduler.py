"""What runs in the next step: every answer that waits for a token, and as many prompt rows as the budget allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.cache import ScheduledRows
from localllm.kernels.step import Output
from localllm.speculation import NOTHING, Ask, Load

from .waiting import FairQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.cache import CachedSequence, KVCache
    from localllm.speculation import Draft, Speculation

    from .budget import StepBudget
    from .job import Job

OUTPUT_VALUES = 2**24  # logits that one step may return for readers (64 MiB)


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A job's rows in a step; the last `len(draft)` of them are guesses."""

    job: Job
    rows: ScheduledRows
    draft: Draft = NOTHING


class Scheduler:
    """Decides who runs, and which rows."""

    def __init__(
        self,
        cache: KVCache,
        budget: StepBudget,
        parallel: int,
        max_rows: int,
        vocabulary_size: int,
        speculation: Speculation | None = None,
    ) -> None:
        self.waiting = FairQueue()
        self.running: list[Job] = []
        self.stuck: list[Job] = []  # jobs for which there are too few pages even alone
        self._cache = cache
        self._budget = budget
        self._parallel = parallel
        self._max_rows = max_rows
        self._speculation = speculation
        self._reader_rows = max(1, OUTPUT_VALUES // vocabulary_size)
        self._work = 0.0  # rows computed so far: the clock of `haste`
        self._last_output = Output.LOGITS
        self._blocked: tuple[Job, int] | None = None  # did not fit, at this release count of the cache

    # ---- who runs

    def admit(self) -> None:
        """Let waiting jobs run, while there are slots and pages."""
        while (job := self.waiting.first(self._running_by_call())) is not None:
            if self.running and self._blocked == (job, self._cache.releases):
                return
            if len(self.running) >= self._parallel and not self._make_way(job):
                return
            if not self._start(job):
                self._blocked = job, self._cache.releases
                return
            self._blocked = None

    def _running_by_call(self) -> Counter[str]:
        return Counter(job.call for job in self.running)

    def _start(self, job: Job, *, reuse: bool = True) -> bool:
        protected = job.request.sinks or 0
        kv = self._cache.open(job.tokens, protected=protected, reuse=reuse and job.request.reader is None)
        others = [running.kv for running in self.running if running.kv is not None]
        if others and not self._cache.fits(kv, others):
            self._cache.release(kv, publish=True)
            return False
        self.waiting.take(job)
        self.run(job, kv)
        return True

    def run(self, job: Job, kv: CachedSequence) -> None:
        """The job runs from now on."""
        job.start(kv)
        job.haste = self._work + job.pending
        self.running.append(job)
        self.running.sort(key=lambda running: running.precedence)

    @property
    def has_slot(self) -> bool:
        """Whether one more job may run."""
        return len(self.running) < self._parallel

    def _make_way(self, job: Job) -> bool:
        """Preempt the last running job if it matters less than this one, or one of a call that has several slots."""
        last = self.running[-1]
        if last.request.priority >= job.request.priority:
            counts = self._running_by_call()
            most = max(counts.values())
            if counts[job.call] or most < 2 or not self._cache.can_fork:  # without shared pages all is computed anew
                return False
            last = [running for running in self.running if counts[running.call] == most][-1]
            if last.request.priority > job.request.priority:
                return False
        self.preempt(last)
        return True

    def preempt(self, job: Job) -> None:
        """Back to the queue; what was computed stays in the prefix cache while there is room."""
        kv = job.pause()
        if kv is not None:
            self._cache.release(kv, publish=True)
        self.running.remove(job)
        self.waiting.put_back(job)

    def drop(self, job: Job, *, publish: bool) -> None:
        """The job is over."""
        if job in self.running:
            self.running.remove(job)
        elif job in list(self.waiting):
            self.waiting.take(job)
        if job.kv is not None:
            self._cache.release(job.kv, publish=publish)
            job.kv = None

    # ---- what runs

    def plan(self) -> tuple[list[Planned], Output]:
        """The rows of the next step, all of one kind of output; jobs that did not fit were preempted."""
        output = self._next_output()
        planned: list[Planned] = []
        left = self._max_rows
        answering = [job for job in self.running if job.answering and self._output(job) is output]
        drafts = self._drafts(answering)
        for job in answering:
            if job in self.running and left > 0:
                rows = max(1, min(job.pending, left, self._room(job)))
                draft = drafts.get(job, NOTHING) if rows == job.pending else NOTHING
                if len(draft) > left - rows:
                    draft = NOTHING
                self._add(planned, job, rows + len(draft), draft)
                left = self._max_rows - sum(len(item.rows.tokens) for item in planned)
        prompts = [job for job in self.running if not job.answering and self._output(job) is output]
        prompts.sort(key=lambda job: (-job.request.priority, job.haste))
        left = min(left, self._budget.rows(decoding=bool(planned)))
        for job in prompts:
            if job in self.running and left > 0:
                rows = max(1, min(job.pending, left, self._room(job)))
                if job.request.reader is not None:
                    rows = min(rows, self._reader_rows)
                left -= self._add(planned, job, rows, NOTHING)
        self._work += sum(len(item.rows.tokens) for item in planned)
        return planned, output

    def _add(self, planned: list[Planned], job: Job, rows: int, draft: Draft) -> int:
        while job.kv is not None and not self._cache.reserve(job.kv, rows):
            victim = self.running[-1]
            if victim is job and len(self.running) == 1:
                if job.restarted:
                    self.stuck.append(job)
                else:
                    self._restart(job)
                return 0
            planned[:] = [item for item in planned if item.job is not victim]
            self.preempt(victim)
        if job.kv is None:
            return 0
        start = job.kv.length
        tokens = np.array([*job.kv.tokens[start : start + rows - len(draft)], *draft.tokens], np.int32)
        parents = () if draft.is_chain else draft.parents
        planned.append(Planned(job, ScheduledRows(job.kv, tokens, self._outputs(job, rows, draft), parents), draft))
        return rows

    def _restart(self, job: Job) -> None:
        """Alone, and still too few pages: pages that were found in the cache stand in the way."""
        job.restarted = True
        kv = job.pause()
        if kv is not None:
            self._cache.release(kv, publish=False)
        self._cache.clear()
        self.running.remove(job)
        self.run(job, self._cache.open(job.tokens, protected=job.request.sinks or 0, reuse=False))

    @staticmethod
    def _outputs(job: Job, rows: int, draft: Draft) -> int:
        reader = job.request.reader
        if reader is None or job.kv is None or job.text.count:
            return 1 + len(draft)
        return max(1, min(rows, job.kv.length + rows - reader.first))

    def _drafts(self, answering: Sequence[Job]) -> dict[Job, Draft]:
        """Guesses for all answers at once, for they compete for the rows of one step."""
        rows = sum(job.pending for job in answering)
        if self._speculation is None or rows >= self._max_rows:
            return {}
        asks: dict[Job, Ask] = {}
        for job in answering:
            if job.guide is None:
                job.guide = self._speculation.begin(drawn=job.request.parameters.temperature > 0)
            most = min(self._room(job) - job.pending, job.text.left - 1)
            if most > 0:
                asks[job] = Ask(job.guide, job.tokens, most, job.hidden)
        if not asks:
            return {}
        drafts = self._speculation.plan(list(asks.values()), Load(rows, len(answering)), self._max_rows - rows)
        return dict(zip(asks, drafts, strict=True))

    def _room(self, job: Job) -> int:
        return 0 if job.kv is None else self._cache.room(job.kv)

    @staticmethod
    def _output(job: Job) -> Output:
        reader = job.request.reader
        return Output.LOGITS if reader is None else reader.output

    def _next_output(self) -> Output:
        kinds = {self._output(job) for job in self.running}
        other = Output.HIDDEN if self._last_output is Output.LOGITS else Output.LOGITS
        self._last_output = other if other in kinds else self._last_output
        return self._last_output if self._last_output in kinds else Output.LOGITS
