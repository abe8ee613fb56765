"""From a request's fields to sampling parameters."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from localllm.sampling import SamplingParameters

from .errors import bad_request
from .fields import Sampling

if TYPE_CHECKING:
    from .fields import ChatRequest, CompletionRequest
    from .served import ServedModel

DEFAULT_TEMPERATURE = 1.0  # OpenAI's
_ELSEWHERE = frozenset(("logprobs", "stop", "seed", "logit_bias", "max_tokens", "top_k", "temperature"))
_ADVISED = frozenset(item.name for item in fields(SamplingParameters)) - _ELSEWHERE | {"temperature", "top_k"}
_SAME = tuple(
    item.name
    for item in fields(SamplingParameters)
    if item.name not in _ELSEWHERE and item.name in Sampling.__struct_fields__
)


def chat_sampling(request: ChatRequest, served: ServedModel) -> SamplingParameters:
    """The parameters of a chat completion. APIError 400, or RequestError with the parameter's name."""
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if limit is not None and limit < 1:
        raise bad_request(f"{name} must be 1 or more, not {limit}", name, "invalid_value")
    return _parameters(request, limit, (request.top_logprobs or 0) if request.logprobs else None, served)


def completion_sampling(request: CompletionRequest, served: ServedModel) -> SamplingParameters:
    """The parameters of a plain completion; `max_tokens` defaults to 16 there, as OpenAI's does."""
    limit = 16 if request.max_tokens is None else request.max_tokens
    if limit == 0 and not request.echo:
        raise bad_request("max_tokens 0 makes sense with echo only", "max_tokens", "invalid_value")
    return _parameters(request, limit, request.logprobs, served)


def _parameters(request: Sampling, limit: int | None, logprobs: int | None, served: ServedModel) -> SamplingParameters:
    if limit is not None and limit < 0:
        raise bad_request(f"max_tokens must not be {limit}", "max_tokens", "invalid_value")
    advised = {name: value for name, value in served.sampling.items() if name in _ADVISED}
    given: dict[str, Any] = {name: getattr(request, name) for name in (*_SAME, "temperature", "top_k")}
    if given["dry_sequence_breakers"] is not None:
        given["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
    stop = request.stop
    if given["top_k"] is not None:
        given["top_k"] = max(0, given["top_k"])
    own = {name: value for name, value in given.items() if value is not None}
    values = {"temperature": DEFAULT_TEMPERATURE, **advised, **own}
    return SamplingParameters(
        **values,
        seed=None if request.seed == -1 else request.seed,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        logit_bias=_bias(request.logit_bias or {}, served.vocabulary_size),
        max_tokens=limit,
        logprobs=logprobs,
    )


def _bias(given: dict[str, float], vocabulary_size: int) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        where = f"logit_bias.{key[:40]}"
        if not re.fullmatch(r"\d{1,10}", key) or int(key) >= vocabulary_size:
            message = f"logit_bias: {key[:40]!r} is not a token id from 0 to {vocabulary_size - 1}"
            raise bad_request(message, where, "invalid_value")
        if not (math.isfinite(value) and -100 <= value <= 100):
            raise bad_request(f"logit_bias: {value} is not between -100 and 100", where, "invalid_value")
        bias[int(key)] = float(value)
    return bias
