"""Runs steps: rows to the executor, logits to samplers, tokens to texts. A bad row fails its own request only."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from localllm.cache import build_step
from localllm.errors import ExecutionError, LocalLLMError, OutOfMemoryError, RequestError
from localllm.kernels.step import Output
from localllm.speculation import verify

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.cache import KVCache
    from localllm.events import ErrorKind
    from localllm.kernels.executor import Executor
    from localllm.speculation import Draft, Speculation

    from .budget import StepBudget
    from .job import Job
    from .scheduler import Planned, Scheduler


_LOG = logging.getLogger("localllm.engine")


class Runner:
    """One engine's steps. `context`: what callers are told that a sequence has room for."""

    def __init__(
        self,
        executor: Executor,
        cache: KVCache,
        scheduler: Scheduler,
        budget: StepBudget,
        *,
        vocabulary_size: int,
        context: int,
        speculation: Speculation | None = None,
    ) -> None:
        self._executor = executor
        self._cache = cache
        self._scheduler = scheduler
        self._budget = budget
        self._vocabulary_size = vocabulary_size
        self._context = context
        self._speculation = speculation
        self._taps = speculation.taps if speculation is not None else ()
        self._warned = False
        self.steps = 0
        self.rows = 0

    def step(self) -> None:
        """Run what the scheduler plans; does nothing when nothing can run."""
        self._scheduler.admit()
        planned, output = self._scheduler.plan()
        while self._scheduler.stuck:
            self.fail(self._scheduler.stuck.pop(), OutOfMemoryError("the KV cache has too few pages for this request"))
        if not planned:
            return
        started = time.perf_counter()
        hidden = self._hidden(planned) if output is Output.LOGITS else None
        try:
            scheduled = [item.rows for item in planned]
            outputs = self._executor.forward(build_step(self._cache, scheduled, output, hidden, self._taps))
        except (OutOfMemoryError, MemoryError) as error:
            known = error if isinstance(error, OutOfMemoryError) else OutOfMemoryError("there is too little memory")
            for item in planned:
                self.fail(item.job, known)
            return
        if hidden is not None and np.isnan(hidden[0, 0]):
            self._miss_hidden()
        answering = [item.job.answering for item in planned]
        self._observe(planned, answering, time.perf_counter() - started)
        rows = sum(len(item.rows.tokens) for item in planned)
        at = 0
        for item in planned:
            end = at + item.rows.outputs
            try:
                self._deliver(item, outputs[at:end], None if hidden is None else hidden[at:end])
            except LocalLLMError as error:
                self.fail(item.job, error)
            except Exception:  # a fault in what one request brought along ends that request, not everybody's
                _LOG.exception("a request failed")
                self.fail(item.job, ExecutionError("this request could not be continued; the log says why"))
            at = end
        if self._speculation is not None and all(answering):
            self._speculation.observe(rows, time.perf_counter() - started)

    def _observe(self, planned: list[Planned], answering: list[bool], seconds: float) -> None:
        counts = [len(item.rows.tokens) for item in planned]
        decode = sum(count for count, answers in zip(counts, answering, strict=True) if answers)
        self._budget.observe(decode, sum(counts) - decode, seconds)
        self.steps += 1
        self.rows += sum(counts)

    def _hidden(self, planned: list[Planned]) -> npt.NDArray[np.float32] | None:
        """Where the executor puts the vectors that guesses are made from; NaN where it does not know how."""
        if self._speculation is None or not self._speculation.wants_hidden:
            return None
        rows = sum(item.rows.outputs for item in planned)
        width = (1 + len(self._taps)) * self._executor.spec.hidden_size
        return np.full((rows, width), np.nan, np.float32)

    def _miss_hidden(self) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("this executor gives no hidden vectors: heads guess nothing (they work with --device cpu)")

    def _deliver(self, item: Planned, rows: npt.NDArray[np.float32], hidden: npt.NDArray[np.float32] | None) -> None:
        job, kv = item.job, item.rows.sequence
        count = len(item.rows.tokens)
        prompt_rows = count - len(item.draft)
        reads = job.request.reader is not None and job.text.count == 0
        if reads or prompt_rows < job.pending:  # the sampler looks at the others
            _check(rows)
        if job.request.reader is not None and reads:
            job.request.reader.read(kv.length + count - len(rows), rows)
        job.report(min(kv.length + count, job.prompt_length))
        if prompt_rows < job.pending:
            self._commit(job, count)
            return
        if job.text.left <= 0:
            self._commit(job, count)
            for each in (job, *job.siblings):
                self.end(each)
            return
        path = self._sample(job, rows[-1 - len(item.draft) :], item.draft)
        if hidden is not None:
            own = hidden[len(rows) - 1 - len(item.draft) :]
            job.hidden = own[[0, *(node + 1 for node in path)]]
        # What was accepted on a side branch has its keys in the wrong places: those rows run again with the next step.
        in_place = next((place for place, node in enumerate(path) if node != place), len(path))
        self._commit(job, prompt_rows + in_place)
        siblings, job.siblings = job.siblings, []
        for sibling in siblings:
            self._begin_sibling(job, sibling, rows[-1])
        if job.text.finished is not None:
            self.end(job)

    def _commit(self, job: Job, rows: int) -> None:
        if job.kv is not None:
            self._cache.commit(job.kv, rows)
            self._cache.publish(job.kv)
            job.note_context(self._context)

    def _sample(self, job: Job, rows: npt.NDArray[np.float32], draft: Draft) -> list[int]:
        """Choose a token from each row while the guesses before it were right; returns the guesses that were."""

        def choose(row: int) -> int | None:
            self._choose(job, rows[row])
            return None if job.text.finished is not None else job.tokens[-1]

        path = verify(draft, choose)
        job.judge(draft, path)
        return path

    def _choose(self, job: Job, row: npt.NDArray[np.float32]) -> None:
        sample = job.choose(row[: self._vocabulary_size])
        job.mark_first()
        job.tokens.append(sample.token)
        delta = job.text.push(sample)
        if job.constraint is not None and job.text.finished is None:
            job.constraint.accept(sample.token)
            if job.constraint.complete():
                rest = job.text.finish("stop")
                if delta is not None:
                    job.generation.put(job.index, delta)
                delta = rest
        if delta is not None:
            job.generation.put(job.index, delta)

    def _begin_sibling(self, parent: Job, sibling: Job, row: npt.NDArray[np.float32]) -> None:
        """Another answer to the same prompt: it shares the prompt's pages, or waits for a slot."""
        if not self._scheduler.has_slot or parent.kv is None or not self._cache.can_fork:
            self._scheduler.waiting.push(sibling)
            return
        kv = self._cache.fork(parent.kv)
        del kv.tokens[parent.prompt_length :]
        self._scheduler.run(sibling, kv)
        try:
            self._choose(sibling, row)
        except LocalLLMError as error:
            self.fail(sibling, error)
            return
        if sibling.text.finished is not None:
            self.end(sibling)

    # ---- the end of a job

    def end(self, job: Job) -> None:
        """It finished by itself."""
        job.finish(job.text.finished or "length")
        self._scheduler.drop(job, publish=True)

    def fail(self, job: Job, error: LocalLLMError) -> None:
        """It and the answers that wait for it fail; nothing of it is kept."""
        kind: ErrorKind = "execution"
        if isinstance(error, OutOfMemoryError | RequestError):
            kind = "memory" if isinstance(error, OutOfMemoryError) else "request"
        for each in (job, *job.siblings):
            self._flush(each, "error")
            each.finish("error", str(error), kind)
            self._scheduler.drop(each, publish=False)
        job.siblings = []

    def cancel(self, job: Job, reason: str | None = None) -> None:
        """The caller, or its deadline, stopped it."""
        for each in (job, *job.siblings):
            self._flush(each, "cancelled")
            each.finish("cancelled", reason)
            self._scheduler.drop(each, publish=True)
        job.siblings = []

    @staticmethod
    def _flush(job: Job, reason: str) -> None:
        if job.text.finished is None:
            delta = job.text.finish("error" if reason == "error" else "cancelled")
            if delta is not None:
                job.generation.put(job.index, delta)


def _check(rows: npt.NDArray[np.float32]) -> None:
    """Nothing that was computed from NaN or infinity may be kept."""
    if not np.isfinite(rows[0].max()) or not np.isfinite(rows[-1].max()):
        raise ExecutionError("the model gave no usable numbers (NaN or infinity) for this request")
