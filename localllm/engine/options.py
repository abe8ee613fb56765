"""How an engine runs: context, cache, and how many requests at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.cache import LEAST_WINDOW, POLICIES, HeavyHitterPolicy, Policy, pool_sizes
from localllm.errors import ConfigurationError
from localllm.kernels.kv_layout import KVLayout, check_kv_type
from localllm.kernels.selective import HeavyHitters, check_type

if TYPE_CHECKING:
    from localllm.cache import ContextPolicy, PoolSizes
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.selective import SelectivePolicy
    from localllm.kernels.spec import ModelSpec
    from localllm.speculation import Speculation


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`context` in tokens, prompt and answer together. A `window` (tokens, `sinks` included) slides instead of ending;
    another `context_policy` than "error" without one slides over the whole context. `sinks` None: each request's own.

    `parallel`: sequences that run at the same time; more wait. `most_tokens` ends an answer for which no limit was
    asked. `pool` replaces the planned page pools (tests). `prefix_cache` False computes every prompt anew.
    `keep_cache`: seconds without work after which cached prefixes are dropped and their memory goes back to the system;
    None keeps them. `speculation` guesses ahead; the engine closes it. `selective`: what the executor was opened with.
    """

    context: int
    kv_type: KVType = "f16"
    window: int | None = None
    sinks: int | None = None
    context_policy: ContextPolicy = "error"
    parallel: int = 1
    most_tokens: int = 2**20
    prefix_cache: bool = True
    keep_cache: float | None = None
    pool: PoolSizes | None = None
    speculation: Speculation | None = None
    selective: SelectivePolicy | None = None

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("parallel", self.parallel), ("window", self.window)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be 1 or more, not {value}")
        if self.sinks is not None and self.sinks < 0:
            raise ConfigurationError(f"sinks must be 0 or more, not {self.sinks}")
        if self.context_policy not in POLICIES:
            raise ConfigurationError(
                f"there is no context policy {self.context_policy!r}", hint=f"use one of: {', '.join(POLICIES)}"
            )

    @property
    def slides(self) -> bool:
        """Whether old tokens are dropped when the context is full."""
        return self.window is not None or self.context_policy != "error"

    def pages(self, spec: ModelSpec, step_rows: int) -> tuple[int, ...]:
        """How many pages the cache of an engine asks for, by cache group, when steps have at most that many rows."""
        if self.pool is not None:
            return self.pool.main
        layout, policy = KVLayout.of(spec), self.policy(spec)
        return pool_sizes(layout, policy, self.kv_type, parallel=self.parallel, step_rows=step_rows).main

    def policy(self, spec: ModelSpec) -> Policy:
        """The KV policy for a model; ConfigurationError for one that cannot work.

        UnsupportedModelError for a type of cache that the model or the selective policy cannot have.
        """
        check_kv_type(spec, self.kv_type)
        check_type(self.selective, self.kv_type)
        if self.selective is not None and (self.slides or self.speculation is not None):
            raise ConfigurationError(
                "a selective KV policy goes neither with a window that slides nor with speculation"
            )
        positions = spec.embed.positions
        if positions is not None:
            most = positions.rows - spec.embed.position_offset
            if self.slides:
                raise ConfigurationError(f"{spec.architecture} models know {most} positions only; no window can slide")
            if self.context > most:
                raise ConfigurationError(f"the context of {self.context} is above the {most} positions of this model")
        if isinstance(self.selective, HeavyHitters):
            return HeavyHitterPolicy(self.context, self.selective.tokens)
        if not self.slides:
            return POLICIES["error"](self.context, None)
        if self.window is None and self.context < LEAST_WINDOW:
            raise ConfigurationError(
                f"a context of {self.context} tokens is too small for a window that slides over it",
                hint=f"use a context of at least {LEAST_WINDOW} tokens, or let it end (context policy error)",
            )
        window = self.window or self.context
        if window > spec.context_length:
            name = "a sliding context of" if self.window is None else "a window of"
            raise ConfigurationError(
                f"{name} {window} tokens is more than the {spec.context_length} that the model was trained for"
            )
        chosen: ContextPolicy = "window" if self.context_policy == "error" else self.context_policy
        return POLICIES[chosen](window, self.sinks)
