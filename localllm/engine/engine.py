"""The engine: one thread that owns the executor; requests of any thread join and leave at every step."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from localllm.cache import CacheUsage, KVCache, pool_sizes, session
from localllm.completion import failed
from localllm.errors import ContextLengthError, ExecutionError, SessionError
from localllm.events import Finished
from localllm.sampling import MAX_SEED, Sampler, SamplingParameters, breaker_ids

from .budget import StepBudget
from .generation import Generation
from .job import Job
from .readers import MeanHidden, NextTokenLogprobs
from .request import Request
from .rest import Rest
from .runner import Runner
from .scheduler import Scheduler
from .sessions import read_session, write_session
from .text import AnswerText

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from localllm.kernels.executor import Executor
    from localllm.tokenizer import Tokenizer

    from .hooks import RowReader
    from .options import EngineOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Jobs that run and wait, pages of the KV cache, and steps and rows computed so far."""

    running: int
    waiting: int
    pages: CacheUsage
    steps: int
    rows: int


class Engine:
    """Generates for many requests at once. Thread-safe; `close` it before the executor.

    Raises ConfigurationError for options that cannot work with the model. The same request with the same seed gives
    the same text whatever else runs, and whatever the prefix cache holds.
    """

    def __init__(self, executor: Executor, tokenizer: Tokenizer, options: EngineOptions) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._options = options
        self._policy = options.policy(executor.spec)
        self._vocabulary_size = min(executor.spec.vocabulary_size, tokenizer.vocabulary_size)
        self._sizes = options.pool or pool_sizes(
            executor.layout, self._policy, options.kv_type, parallel=options.parallel, step_rows=executor.max_rows
        )
        pieces = partial(tokenizer.pieces, range(self._vocabulary_size))  # a method would tie the engine to itself
        self._breakers = lru_cache(8)(lambda breakers: breaker_ids(pieces(), breakers))
        self._changed = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._tasks: deque[tuple[Callable[[], None], Future[Any]]] = deque()
        self._order = 0
        self._wanted = 0  # callers that wait for, or have, the executor alone
        self._offered = self._lent = False  # the engine's thread leaves it to one of them
        self._draining = self._closing = False
        self._death: ExecutionError | None = None
        self._rest = Rest(options.keep_cache)
        self._build()
        self._thread = threading.Thread(target=self._run, name="localllm-engine", daemon=True)
        self._thread.start()

    def _build(self) -> None:
        self._executor.allocate_kv(self._sizes.main, self._options.kv_type, self._staging())
        self._cache = KVCache(self._executor.layout, self._sizes, self._policy, reuse=self._options.prefix_cache)
        budget = StepBudget(self._executor.max_rows)
        self._scheduler = Scheduler(
            self._cache,
            budget,
            self._options.parallel,
            self._executor.max_rows,
            self._executor.spec.vocabulary_size,
            self._options.speculation,
        )
        self._runner = Runner(
            self._executor,
            self._cache,
            self._scheduler,
            budget,
            vocabulary_size=self._vocabulary_size,
            context=self._policy.peak_tokens(1),
            speculation=self._options.speculation,
        )

    def _staging(self) -> tuple[int, ...]:
        return self._sizes.staging or (0,) * len(self._sizes.main)

    # ---- requests

    def submit(self, request: Request) -> Generation:
        """Queue a request; returns at once.

        Raises ContextLengthError for a prompt that leaves no room for an answer, RequestError for other things that
        can never work, ExecutionError when the engine has failed or is closing.
        """
        self._check_length(request)
        self._policy.sink_pages(request.sinks or 0)
        generation = Generation(request.n, self._wake)
        with self._changed:
            self._check_alive()
            self._order += 1
            order = self._order
        jobs = [self._job(request, generation, index, order) for index in range(request.n)]
        jobs[0].siblings = jobs[1:]
        with self._changed:
            self._check_alive()
            self._inbox.append(jobs[0])
            self._changed.notify_all()
        return generation

    def _check_length(self, request: Request) -> None:
        count, context = len(request.ids), self._options.context
        room = context if request.parameters.max_tokens == 0 else context - 1
        if not self._options.slides and count > room:
            raise ContextLengthError(
                f"the prompt has {count} tokens, but the context holds {context} tokens, prompt and answer together",
                hint="shorten the prompt, load the model with a larger context, or let a window slide",
                parameter="prompt",
            )

    def _job(self, request: Request, generation: Generation, index: int, order: int) -> Job:
        parameters = request.parameters
        sampler = Sampler(
            parameters if index == 0 else _reseeded(parameters, index),
            self._vocabulary_size,
            prompt_length=len(request.ids),
            breakers=lambda: self._breakers(parameters.dry_sequence_breakers),
        )
        limit = self._options.most_tokens if parameters.max_tokens is None else parameters.max_tokens
        if not self._options.slides:
            limit = min(limit, self._options.context - len(request.ids))
        text = AnswerText(self._tokenizer, parameters, limit, show_special=request.show_special)
        banned = [token for token in self._tokenizer.end_ids if parameters.ignore_eos and token < self._vocabulary_size]
        return Job(request, generation, index, order, sampler, text, np.array(banned, np.int64))

    def score(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Log-probability [len(ids) - 1] of each next token, through the KV policy as in decoding."""
        reader = NextTokenLogprobs(ids)
        self.read(ids, reader)
        return reader.values

    def embed(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Mean [hidden] of the tokens' hidden vectors after the final norm."""
        reader = MeanHidden(len(ids), self._executor.spec.hidden_size)
        self.read(ids, reader)
        return reader.mean()

    def read(self, ids: Sequence[int], reader: RowReader) -> None:
        """Run a prompt for its outputs only; raises what went wrong."""
        for event in self.submit(Request(ids, SamplingParameters(max_tokens=0), reader=reader)):
            if isinstance(event, Finished) and event.reason in ("error", "cancelled"):
                raise failed(event) if event.error else ExecutionError("the engine was closed")

    # ---- saved sessions

    def save_session(
        self,
        path: str | os.PathLike[str],
        ids: Sequence[int],
        *,
        model: str,
        sinks: int | None = None,
        most_bytes: int | None = None,
    ) -> int:
        """Write the keys and values of as much of `ids` as is cached; returns how many tokens that is.

        `model` ties the file to its model (`model_fingerprint`). Raises SessionError, also for more than `most_bytes`;
        the file is whole or untouched.
        """
        key = self._session_key(model)
        pieces, length = self._between_steps(
            lambda: session.dump(self._cache, self._executor, key, ids, sinks or 0, most_bytes=most_bytes)
        )
        write_session(path, pieces)
        return length

    def restore_session(self, path: str | os.PathLike[str], *, model: str) -> list[int]:
        """Put a saved session into the cache, where the next request with the same beginning finds it; its token ids.

        Raises SessionError for a damaged or foreign file, or when there is no room for it.
        """
        key, data = self._session_key(model), read_session(path)
        name = "context" if self._options.window is None else "window"
        tokens = self._between_steps(lambda: session.load(self._cache, self._executor, key, data, bound_name=name))
        if not all(0 <= token < self._executor.spec.vocabulary_size for token in tokens):
            raise SessionError("the saved session is damaged: it holds tokens that the model does not have")
        return tokens

    def _session_key(self, model: str) -> session.SessionKey:
        options = self._options
        return session.SessionKey(
            model=model,
            device=type(self._executor).__name__,
            kv_type=options.kv_type,
            window=(options.window or options.context) if options.slides else None,
            groups=tuple(group.window for group in self._executor.layout.groups),
            seal_tokens=self._sizes.seal_tokens,
            selective=None if options.selective is None else str(options.selective),
        )

    def _between_steps(self, task: Callable[[], T]) -> T:
        """Run something on the engine's thread."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        with self._changed:
            self._check_alive()
            self._tasks.append((run, future))
            self._changed.notify_all()
        return future.result()

    # ---- the executor for somebody else

    @contextmanager
    def exclusive(self) -> Iterator[Executor]:
        """The executor alone, once no request runs; the KV pools are made anew afterwards. New requests wait."""
        with self._changed:
            self._check_alive()
            self._wanted += 1
            self._changed.notify_all()
            try:
                while not self._offered:
                    self._check_alive()
                    self._changed.wait()
            except BaseException:
                self._wanted -= 1
                self._changed.notify_all()
                raise
            self._offered, self._lent = False, True
        try:
            yield self._executor
        finally:
            try:
                if not self._closing:
                    self._build()
            finally:
                with self._changed:
                    self._lent = False
                    self._wanted -= 1
                    self._changed.notify_all()

    # ---- state

    def usage(self) -> EngineUsage:
        """How busy the engine is; a snapshot."""
        scheduler, runner = self._scheduler, self._runner
        with self._changed:
            waiting = len(self._inbox)
        return EngineUsage(
            len(scheduler.running), waiting + len(scheduler.waiting), self._cache.usage(), runner.steps, runner.rows
        )

    @property
    def failure(self) -> ExecutionError | None:
        """Why the engine died, if it did."""
        return self._death

    def drain(self) -> None:
        """Take no more requests and wait until those that are here are finished."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            while self._death is None and not self._closing and not self._idle():
                self._changed.wait()

    def close(self) -> None:
        """Cancel everything and stop the thread; may be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._options.speculation is not None:
                self._options.speculation.close()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death
        if self._closing or self._draining:
            raise ExecutionError("the engine is closing and takes no more requests")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- the engine's thread

    def _idle(self) -> bool:
        return not (self._inbox or self._scheduler.running or len(self._scheduler.waiting))

    def _run(self) -> None:
        try:
            while self._receive():
                while self._tasks and not self._lent:
                    self._tasks.popleft()[0]()
                self._stop_the_cancelled()
                self._runner.step()
                self._rest.put_off()
                if self._idle():
                    self._wake()  # those who drain
        except BaseException as error:  # whatever it is, nobody may be left waiting
            self._die(error)

    def _receive(self) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._changed:
            while True:
                if self._closing and not self._lent:
                    self._cancel_all()
                    return False
                while self._inbox and not self._wanted:
                    self._scheduler.waiting.push(self._inbox.popleft())
                if self._scheduler.running or len(self._scheduler.waiting) or (self._tasks and not self._lent):
                    return True
                for job in [job for job in self._inbox if job.generation.cancelled]:
                    self._inbox.remove(job)
                    self._runner.cancel(job)
                offered = self._wanted > 0 and not self._lent
                if offered != self._offered:
                    self._offered = offered
                    self._changed.notify_all()
                if self._rest.seconds_left == 0 and not self._wanted:
                    self._rest.begin()
                    self._cache.clear()
                    self._executor.forget_pages()
                self._changed.wait(None if self._wanted else self._rest.seconds_left)

    def _stop_the_cancelled(self) -> None:
        for job in [*self._scheduler.running, *self._scheduler.waiting]:
            deadline = job.request.deadline
            if job.generation.cancelled:
                self._runner.cancel(job)
            elif deadline is not None and job.waited > deadline:
                self._runner.cancel(job, f"the deadline of {deadline:g} s passed")

    def _drop_tasks(self, reason: ExecutionError) -> None:
        while self._tasks:
            self._tasks.popleft()[1].set_exception(reason)

    def _cancel_all(self) -> None:
        self._drop_tasks(ExecutionError("the engine is closing"))
        for job in [*self._scheduler.running, *self._scheduler.waiting, *self._inbox]:
            self._runner.cancel(job)
        self._inbox.clear()
        self._changed.notify_all()

    def _die(self, error: BaseException) -> None:
        text = str(error) or type(error).__name__
        death = ExecutionError(f"the engine stopped: {text}", hint="load the model again")
        with self._changed:
            self._death = death
            self._drop_tasks(death)
            jobs = [*self._scheduler.running, *self._scheduler.waiting, *self._inbox]
            for job in jobs:
                for each in (job, *job.siblings):
                    each.finish("error", str(death))
            self._inbox.clear()
            self._changed.notify_all()


def _reseeded(parameters: SamplingParameters, index: int) -> SamplingParameters:
    """The parameters of answer `index`: its own seed, if one was given."""
    seed = parameters.seed
    return parameters if seed is None else replace(parameters, seed=(seed + index) % (MAX_SEED + 1))
