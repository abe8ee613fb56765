"""What a caller may ask of the sampler; the same object in Python, CLI, server and chat."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from localllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How to choose tokens. Values that switch a step off are exact no-ops (top_k 0, top_p 1, min_p 0, ...).

    `temperature` 0 is greedy (the lowest id on ties). `seed` None draws one. `logit_bias` is added to raw logits;
    -100 or less bans, +100 or more forces. `stop` strings end the text right before their first occurrence.
    `repetition_penalty` divides positive and multiplies negative logits of the last `penalty_last_n` tokens
    (https://arxiv.org/abs/1909.05858); DRY and XTC as published by their author
    (https://github.com/oobabooga/text-generation-webui/pull/5677 and /pull/6335).
    Raises RequestError, with the parameter's name, for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives to report per token; 0: the chosen one only

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(f"{item.name} must be a finite number, not {value}", parameter=item.name)
        checks = (
            ("temperature", 0 <= self.temperature <= 1000, "between 0 and 1000"),
            ("top_p", 0 <= self.top_p <= 1, "between 0 and 1"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("typical_p", 0 <= self.typical_p <= 1, "between 0 and 1"),
            ("repetition_penalty", 0.001 <= self.repetition_penalty <= 1000, "between 0.001 and 1000"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            ("penalty_last_n", self.penalty_last_n >= -1, "-1 (everything), 0 (off) or more"),
            ("dry_multiplier", 0 <= self.dry_multiplier <= 1000, "between 0 and 1000"),
            ("dry_base", 1 <= self.dry_base <= 1000, "between 1 and 1000"),
            ("dry_allowed_length", self.dry_allowed_length >= 0, "0 or more"),
            ("xtc_probability", 0 <= self.xtc_probability <= 1, "between 0 and 1"),
            ("xtc_threshold", 0 <= self.xtc_threshold <= 1, "between 0 and 1"),
            ("seed", self.seed is None or 0 <= self.seed <= MAX_SEED, f"between 0 and {MAX_SEED}"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "0 or more"),
            ("stop", all(self.stop), "without empty strings"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "between 0 and 20"),
        )
        for name, right, wanted in checks:
            if not right:
                raise RequestError(f"{name} must be {wanted}, not {getattr(self, name)!r}", parameter=name)


def parameters_of(sampling: Mapping[str, Any]) -> SamplingParameters:
    """Keywords as SamplingParameters; a single stop string is a list of one. RequestError names an unknown keyword."""
    known = SamplingParameters.__dataclass_fields__
    unknown = [name for name in sampling if name not in known]
    if unknown:
        raise RequestError(f"there is no sampling parameter {unknown[0]!r}", parameter=unknown[0])
    parameters = SamplingParameters()
    changes = dict(sampling)
    if "stop" in changes:
        stop = changes["stop"]
        changes["stop"] = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    return replace(parameters, **changes)
