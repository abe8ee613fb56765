"""One answer in the making: its sequence, its sampler, its text, its clock. Belongs to the engine's thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from localllm.cache.sequence import token_array
from localllm.events import Finished, PromptProgress, Timings, Usage
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.speculation import MOST_GUESSES

from .generation import ContextState

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.cache import CachedSequence
    from localllm.events import ErrorKind, FinishReason
    from localllm.sampling import Sample, Sampler
    from localllm.speculation import Draft, Guide

    from .generation import Generation
    from .hooks import Constraint
    from .request import Request
    from .text import AnswerText


class Job:
    """State of one answer. `kv` is None while it waits; `tokens` outlive it, so that a preempted job can be redone."""

    def __init__(
        self,
        request: Request,
        generation: Generation,
        index: int,
        order: int,
        sampler: Sampler,
        text: AnswerText,
        banned: npt.NDArray[np.int64],
    ) -> None:
        self.request = request
        self.generation = generation
        self.index = index
        self.precedence = (-request.priority, order, index)
        self.call = request.call or f"#{order}"  # what takes turns with others
        self.sampler = sampler
        self.text = text
        self.constraint: Constraint | None = request.constraint() if request.constraint is not None else None
        self.guide: Guide | None = None  # guesses ahead, once the answer has begun
        self.hidden: npt.NDArray[np.float32] | None = None  # of the rows before the newest tokens, where guides want it
        self.kv: CachedSequence | None = None
        self.siblings: list[Job] = []  # other answers to the same prompt, which wait for it
        self.restarted = False
        self.haste = 0.0  # of two prompts, the one with the lower number is computed first
        self._banned = banned
        self._tokens = token_array(request.ids)
        self._cached = 0
        self._progress = 0
        self._drafted = self._accepted = 0
        self._submitted = time.perf_counter()
        self._started: float | None = None
        self._first: float | None = None

    @property
    def tokens(self) -> array[int]:
        """The prompt and what was chosen so far."""
        return self._tokens if self.kv is None else self.kv.tokens

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.ids)

    @property
    def pending(self) -> int:
        """Tokens whose row has not been computed."""
        return len(self.tokens) - (0 if self.kv is None else self.kv.length)

    @property
    def answering(self) -> bool:
        """Whether the prompt is done and each step gives a token.

        More than one row is pending behind guesses that were right on a side branch: their keys and values lie in the
        wrong places, so those rows are run again.
        """
        return self.text.count > 0 and self.pending <= MOST_GUESSES + 1

    @property
    def waited(self) -> float:
        """Seconds since submission."""
        return time.perf_counter() - self._submitted

    def start(self, kv: CachedSequence) -> None:
        """The job runs (again)."""
        self.kv = kv
        if self._started is None:
            self._started = time.perf_counter()
            self._cached = kv.matched
        self.report(min(kv.length, self.prompt_length))

    def pause(self) -> CachedSequence | None:
        """The job gives its sequence back and keeps its tokens."""
        kv, self.kv = self.kv, None
        if kv is not None:
            self._tokens = kv.tokens
        return kv

    def report(self, processed: int) -> None:
        """Tell how much of the prompt is done."""
        if self.text.count == 0 and processed >= self._progress:
            self._progress = processed
            self.generation.put(self.index, PromptProgress(self.prompt_length, self._cached, processed))

    def choose(self, row: npt.NDArray[np.float32]) -> Sample:
        """The next token, from logits [vocabulary]: the sampler's choice among what grammar and bans leave."""
        allowed = None if self.constraint is None else self.constraint.allowed()
        if len(self._banned):
            if allowed is None and self.request.parameters.logprobs is None:  # much cheaper than a mask
                row = row.copy()
                row[self._banned] = -np.inf
            else:
                allowed = np.ones(len(row), bool) if allowed is None else allowed[: len(row)].copy()
                allowed[self._banned] = False
        elif allowed is not None:
            allowed = allowed[: len(row)]
        return self.sampler.sample(row, self.tokens, allowed)

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """The step verified these guesses; those of `accepted` were right."""
        if self.guide is not None and len(draft):
            self._drafted += len(draft)
            self._accepted += len(accepted)
            self.guide.judge(draft, accepted)

    def mark_first(self) -> None:
        """The first token is there."""
        if self._first is None:
            self._first = time.perf_counter()

    def note_context(self, limit: int) -> None:
        """Tell the caller how the sequence fills its context."""
        if self.kv is not None and self.index == 0:
            kept = self.kv.length - self.kv.evicted_tokens
            sunk = self.kv.sink_pages * PAGE_SIZE if self.kv.evicted_tokens else 0
            self.generation.set_context_state(ContextState(limit, kept, sunk, self.kv.evicted_tokens))

    def finish(self, reason: FinishReason, error: str | None = None, kind: ErrorKind | None = None) -> None:
        """The last event."""
        if self.guide is not None:
            self.guide.close()
        now = time.perf_counter()
        started = self._started or now
        first = self._first or now
        timings = Timings(
            queue_seconds=started - self._submitted,
            prompt_seconds=first - started,
            first_token_seconds=first - self._submitted,
            decode_seconds=now - first,
        )
        usage = Usage(
            prompt_tokens=self.prompt_length,
            completion_tokens=self.text.count,
            cached_tokens=self._cached,
            evicted_tokens=0 if self.kv is None else self.kv.evicted_tokens,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
        )
        self.generation.put(self.index, Finished(reason, usage, timings, self.text.stop_text, error, kind))
