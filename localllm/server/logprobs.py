"""Log-probabilities as chat and plain completions report them: natural logs of the softmax of the raw logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from localllm.events import TokenLogprob, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.engine import NextTokenLogprobs
    from localllm.tokenizer import Tokenizer

LOWEST = -9999.0  # instead of minus infinity, which JSON cannot hold


def finite(value: float) -> float:
    """A number that JSON can hold."""
    return max(float(value), LOWEST) if math.isfinite(value) else LOWEST


def _text(item: TokenLogprob) -> str:
    return item.bytes.decode("utf-8", "replace")


def _entry(item: TokenLogprob) -> dict[str, Any]:
    return {"token": _text(item), "logprob": finite(item.logprob), "bytes": list(item.bytes)}


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The object of chat completions."""
    content = [{**_entry(item.chosen), "top_logprobs": [_entry(other) for other in item.top]} for item in tokens]
    return {"content": content, "refusal": None}


def prompt_logprobs(tokenizer: Tokenizer, ids: Sequence[int], scores: NextTokenLogprobs) -> list[TokenLogprobs]:
    """A prompt's tokens; the first has no probability, which is told by NaN."""

    def entry(token: int, value: float) -> TokenLogprob:
        return TokenLogprob(token, value, tokenizer.token_bytes(token))

    tokens = [TokenLogprobs(entry(ids[0], math.nan), ())]
    for token, value, best in zip(ids[1:], scores.values, scores.best, strict=True):
        tokens.append(TokenLogprobs(entry(token, float(value)), tuple(entry(*other) for other in best)))
    return tokens


class LegacyLogprobs:
    """The four arrays of plain completions, in one or several parts. Control tokens take no place in the text."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = offset

    def part(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens."""
        texts: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for item in tokens:
            chosen = item.chosen
            text = _text(chosen)
            texts.append(text)
            offsets.append(self._offset)
            self._offset += 0 if self._tokenizer.is_control(chosen.token) else len(text)
            if math.isnan(chosen.logprob):
                values.append(None)
                tops.append(None)
                continue
            values.append(finite(chosen.logprob))
            shown = {_text(other): finite(other.logprob) for other in item.top}
            shown.setdefault(text, finite(chosen.logprob))
            tops.append(shown)
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
