"""From sampled tokens to text events: characters made whole, stop strings found, the end of the answer known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.events import TextDelta, TokenLogprob, TokenLogprobs
from localllm.stopping import StopMatcher

if TYPE_CHECKING:
    from localllm.events import FinishReason
    from localllm.sampling import Sample, SamplingParameters
    from localllm.tokenizer import Tokenizer


class AnswerText:
    """The text of one answer. `limit`: tokens after which it ends with "length"; the end token counts as one."""

    def __init__(
        self, tokenizer: Tokenizer, parameters: SamplingParameters, limit: int, *, show_special: bool = False
    ) -> None:
        self.finished: FinishReason | None = None
        self.count = 0
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream_decoder(skip_special=not show_special, continues=True)
        self._matcher = StopMatcher(parameters.stop)
        self._limit = limit
        self._ends = frozenset() if parameters.ignore_eos else frozenset(tokenizer.end_ids)
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return self._limit - self.count

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the answer."""
        return self._matcher.matched

    def push(self, sample: Sample) -> TextDelta | None:
        """Take a token; returns what can be shown now and sets `finished` when it was the last."""
        self.count += 1
        self._ids.append(sample.token)
        if sample.logprob is not None:
            top = tuple(self._logprob(token, value) for token, value in sample.top)
            self._logprobs.append(TokenLogprobs(self._logprob(sample.token, sample.logprob), top))
        if sample.token in self._ends:
            return self.finish("stop")
        text = self._matcher.push(self._decoder.push(sample.token))
        if self._matcher.matched is not None:
            self.finished = "stop"
        elif self.count >= self._limit:
            return self.finish("length", text)
        return self._delta(text) if text or self.finished else None

    def finish(self, reason: FinishReason, text: str = "") -> TextDelta | None:
        """End here; returns what was held back."""
        self.finished = reason
        text += self._matcher.push(self._decoder.flush())
        text += self._matcher.flush()
        if self._matcher.matched is not None:
            self.finished = "stop"
        return self._delta(text) if text or self._ids else None

    def _delta(self, text: str) -> TextDelta:
        delta = TextDelta(text, tuple(self._ids), tuple(self._logprobs))
        self._ids, self._logprobs = [], []
        return delta

    def _logprob(self, token: int, value: float) -> TokenLogprob:
        return TokenLogprob(token, value, self._tokenizer.token_bytes(token))
