"""The chain: raw logits -> penalties -> filters -> temperature -> one token, reproducible from the seed."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from localllm.errors import ExecutionError, RequestError

from .candidates import Candidates
from .draw import draw_plain
from .dry import dry_penalty
from .min_p import min_p
from .parameters import MAX_SEED
from .penalties import count_penalties, repetition_penalty
from .top_k import top_k
from .top_p import top_p
from .typical_p import typical_p
from .xtc import xtc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .parameters import SamplingParameters

# Fields whose meaning the shortcuts of the sampler know. Any other field that is not at its default goes the whole way,
# so a new sampler is slow rather than skipped until it is named here.
KNOWN = frozenset((
    "temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "logit_bias", "seed",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_sequence_breakers", "max_tokens", "stop", "ignore_eos", "logprobs",
))  # fmt: skip
BAN, FORCE = -100.0, 100.0
ROUNDING = 0.01  # logits by which a quick first look may err


@dataclass(frozen=True, slots=True)
class Sample:
    """A chosen token; with `logprobs` asked for, its log-probability and the best alternatives, as (id, logprob)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one sequence.

    `prompt_length`: tokens of the history that are prompt; presence and frequency penalties count the others only,
    the repetition penalty sees the last `penalty_last_n` of all. `breakers` gives the ids for DRY, called when needed.
    Every call of `sample` draws exactly two random numbers whatever the parameters, so a seed means the same text with
    any cache or batch. Raises RequestError for a logit bias outside the vocabulary.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        vocabulary_size: int,
        *,
        prompt_length: int = 0,
        breakers: Callable[[], frozenset[int]] | None = None,
    ) -> None:
        self.parameters = parameters
        self.prompt_length = prompt_length
        self.seed = secrets.randbelow(MAX_SEED) if parameters.seed is None else parameters.seed
        self._random = np.random.Generator(np.random.Philox(self.seed))
        self._breakers = breakers
        self._vocabulary_size = vocabulary_size
        wrong = [token for token in parameters.logit_bias if not 0 <= token < vocabulary_size]
        if wrong:
            raise RequestError(
                f"logit_bias names token {wrong[0]}, but the vocabulary has {vocabulary_size}", parameter="logit_bias"
            )
        bias = parameters.logit_bias
        self._bias_ids = np.array(list(bias), dtype=np.int64)
        self._bias_values = np.array([-np.inf if value <= BAN else value for value in bias.values()])
        self._unknown = any(
            getattr(parameters, item.name) != item.default for item in fields(parameters) if item.name not in KNOWN
        )
        self._forced = np.array([token for token, value in bias.items() if value >= FORCE], dtype=np.int64)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is simply the best raw logit, so that a device may choose it."""
        p = self.parameters
        plain = not self._changes_logits and not self._unknown
        return p.temperature == 0 and p.logprobs is None and plain and p.xtc_probability == 0

    @property
    def _is_plain(self) -> bool:
        """Whether every token may be drawn with its own probability."""
        p = self.parameters
        filters = p.top_k > 0 or p.top_p < 1 or p.typical_p < 1 or p.min_p > 0 or p.xtc_probability > 0
        return p.temperature > 0 and not filters and not self._changes_logits and not self._unknown

    @property
    def _changes_logits(self) -> bool:
        p = self.parameters
        penalised = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
        return penalised or p.dry_multiplier > 0 or len(self._bias_ids) > 0

    def sample(
        self,
        logits: npt.NDArray[np.float32],
        history: Sequence[int],
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> Sample:
        """Choose from `logits` [vocabulary]; `allowed` [vocabulary] is a grammar's mask.

        Raises ExecutionError when the logits are NaN or infinite, RequestError when nothing is left to choose from.
        """
        choice, exclusion = self._random.random(2)
        if self.is_plain_greedy and allowed is None:
            token = int(np.argmax(logits))
            _check(float(logits[token]))
            return Sample(token)
        if self._is_plain and allowed is None:
            _check(float(np.max(logits)))
            token = draw_plain(logits, self.parameters.temperature, choice)
        else:
            token = self._choose(self._filter(logits, history, allowed, exclusion), choice)
        if self.parameters.logprobs is None:
            return Sample(token)
        logprob, top = log_probabilities(logits, token, self.parameters.logprobs)
        return Sample(token, logprob, top)

    def distribution(
        self,
        logits: npt.NDArray[np.float32],
        history: Sequence[int],
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Probabilities [vocabulary] that `sample` would draw from, for speculation (XTC's own draw is left out)."""
        candidates = self._filter(logits, history, allowed, exclusion=1.0)
        result = np.zeros(self._vocabulary_size)
        if self.parameters.temperature == 0:
            result[_best(candidates)] = 1.0
        else:
            result[candidates.ids] = _tempered(candidates, self.parameters.temperature).probabilities()
        return result

    def _filter(
        self,
        logits: npt.NDArray[np.float32],
        history: Sequence[int],
        allowed: npt.NDArray[np.bool_] | None,
        exclusion: float,
    ) -> Candidates:
        p = self.parameters
        _check(float(np.max(logits)))
        plain = allowed is None and not self._changes_logits and not self._unknown
        if plain and p.typical_p >= 1 and p.top_p >= 1 and p.min_p > 0:
            near = np.flatnonzero(logits >= np.max(logits) + math.log(p.min_p) - ROUNDING)
            logits_near = Candidates(near, logits[near].astype(np.float64))
            return xtc(min_p(top_k(logits_near, p.top_k), p.min_p), p.xtc_threshold, p.xtc_probability, exclusion)
        values = logits.astype(np.float64)
        if self._changes_logits:
            self._penalise(values, history)
        if allowed is not None:
            values[~allowed] = -np.inf
        ids = np.flatnonzero(values > -np.inf)
        if not len(ids):
            raise RequestError("no token is left to choose: logit bias or grammar forbid every one")
        candidates = Candidates(ids, values[ids])
        candidates = top_k(candidates, p.top_k)
        candidates = typical_p(candidates, p.typical_p)
        candidates = top_p(candidates, p.top_p)
        candidates = min_p(candidates, p.min_p)
        return xtc(candidates, p.xtc_threshold, p.xtc_probability, exclusion)

    def _penalise(self, values: npt.NDArray[np.float64], history: Sequence[int]) -> None:
        p = self.parameters
        recent = history if p.penalty_last_n < 0 else history[max(0, len(history) - p.penalty_last_n) :]
        repetition_penalty(values, recent, p.repetition_penalty)
        count_penalties(values, history[self.prompt_length :], p.presence_penalty, p.frequency_penalty)
        if p.dry_multiplier > 0:
            breakers = frozenset[int]() if self._breakers is None else self._breakers()
            dry_penalty(values, history, breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length)
        if len(self._bias_ids):
            values[self._bias_ids] += self._bias_values
        if len(self._forced):
            kept = values[self._forced].copy()
            values[:] = -np.inf
            values[self._forced] = kept

    def _choose(self, candidates: Candidates, draw: float) -> int:
        if self.parameters.temperature == 0:
            return _best(candidates)
        cumulative = np.cumsum(_tempered(candidates, self.parameters.temperature).probabilities())
        index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
        return int(candidates.ids[min(index, len(cumulative) - 1)])


def log_probabilities(
    logits: npt.NDArray[np.float32], token: int, count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-softmax of raw `logits`: that of `token`, and the `count` best as (id, logprob), sorted."""
    values = logits.astype(np.float64)
    best = values.max()
    total = best + np.log(np.exp(values - best).sum())
    chosen = top_k(Candidates(np.arange(len(values)), values), count) if count else None
    top = (
        ()
        if chosen is None
        else tuple((int(i), float(v - total)) for i, v in zip(chosen.ids, chosen.logits, strict=True))
    )
    return float(values[token] - total), top


def _best(candidates: Candidates) -> int:
    return int(candidates.ids[candidates.logits == candidates.logits.max()].min())


def _tempered(candidates: Candidates, temperature: float) -> Candidates:
    best = candidates.logits.max()  # subtracted first, so that a tiny temperature cannot overflow
    return Candidates(candidates.ids, (candidates.logits - best) / max(temperature, 1e-6))


def _check(best: float) -> None:
    if not np.isfinite(best):
        raise ExecutionError(f"the model gave no usable logits (the best one is {best})")
