"""Random models of any shape, made directly as specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.spec import (
    Activation,
    Attention,
    Embed,
    FeedForward,
    Gating,
    Head,
    LatentAttention,
    Layer,
    Linear,
    MixtureOfExperts,
    ModelSpec,
    Norm,
    Rope,
)

VOCABULARY = 96


class SpecMaker:
    """Makes specs with random float32 weights; every method takes changes to the block it makes."""

    def __init__(self, hidden: int = 64, seed: int = 5) -> None:
        self.hidden = hidden
        self._random = np.random.default_rng(seed)

    def tensor(self, *shape: int, scale: float | None = None, offset: float = 0.0) -> Tensor:
        """A random tensor; matrices are scaled so that a product keeps the size of its input."""
        size = scale if scale is not None else 1.0 / np.sqrt(shape[-1])
        values = (self._random.standard_normal(shape) * size + offset).astype(np.float32)
        return Tensor("random", QuantType.F32, shape, values.view(np.uint8))

    def linear(self, outputs: int, inputs: int, *, bias: bool = False, experts: tuple[int, ...] = ()) -> Linear:
        """A matrix, with a bias if asked for."""
        return Linear(
            self.tensor(*experts, outputs, inputs),
            self.tensor(*experts, outputs, scale=0.1) if bias else None,
        )

    def norm(self, *shape: int, layer: bool = False) -> Norm:
        """An RMS or layer norm."""
        gain = self.tensor(*(shape or (self.hidden,)), scale=0.1, offset=1.0)
        bias = self.tensor(*(shape or (self.hidden,)), scale=0.1) if layer else None
        return Norm(gain, 1e-5, bias, layer)

    def rope(self, dimensions: int, *, interleaved: bool = False, magnitude: float = 1.0) -> Rope:
        """An ordinary rope."""
        return Rope(10000.0 ** -(np.arange(dimensions // 2) * 2.0 / dimensions), interleaved, magnitude)

    def attention(self, heads: int = 4, kv_heads: int = 2, dim: int = 16, **changes: Any) -> Attention:
        """Grouped-query attention."""
        value_dim, bias = changes.get("value_dim", dim), changes.pop("bias", False)
        made = Attention(
            norm=self.norm(),
            query=self.linear(heads * dim, self.hidden, bias=bias),
            key=self.linear(kv_heads * dim, self.hidden, bias=bias),
            value=self.linear(kv_heads * value_dim, self.hidden, bias=bias),
            output=self.linear(self.hidden, heads * value_dim, bias=bias),
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=value_dim,
            scale=1.0 / np.sqrt(dim),
            rope=self.rope(dim),
        )
        return replace(made, **changes)

    def latent_attention(
        self, heads: int = 3, rank: int = 32, nope: int = 16, rotated: int = 8, value_dim: int = 16
    ) -> LatentAttention:
        """Multi-head latent attention."""
        return LatentAttention(
            norm=self.norm(),
            query=(self.linear(48, self.hidden), self.norm(48), self.linear(heads * (nope + rotated), 48)),
            key_value_down=self.linear(rank + rotated, self.hidden),
            latent_norm=self.norm(rank),
            key_up=self.tensor(heads, rank, nope),
            value_up=self.tensor(heads, value_dim, rank),
            output=self.linear(self.hidden, heads * value_dim),
            heads=heads,
            latent_rank=rank,
            nope_dim=nope,
            value_dim=value_dim,
            scale=0.2,
            rope=self.rope(rotated, interleaved=True),
        )

    def feed_forward(self, neurons: int = 96, *, gate: bool = True, bias: bool = False, **changes: Any) -> FeedForward:
        """A dense block."""
        made = FeedForward(
            norm=self.norm(),
            gate=self.linear(neurons, self.hidden, bias=bias) if gate else None,
            up=self.linear(neurons, self.hidden, bias=bias),
            down=self.linear(self.hidden, neurons, bias=bias),
            activation=Activation.SILU,
        )
        return replace(made, **changes)

    def experts(self, count: int = 5, top_k: int = 2, neurons: int = 32, **changes: Any) -> MixtureOfExperts:
        """A mixture."""
        bias, gate = changes.pop("bias", False), changes.pop("gate_present", True)
        made = MixtureOfExperts(
            norm=self.norm(),
            router=self.linear(count, self.hidden, bias=bias),
            gate=self.linear(neurons, self.hidden, experts=(count,), bias=bias) if gate else None,
            up=self.linear(neurons, self.hidden, experts=(count,), bias=bias),
            down=self.linear(self.hidden, neurons, experts=(count,), bias=bias),
            experts=count,
            top_k=top_k,
            activation=Activation.SILU,
            gating=Gating.SOFTMAX,
            normalise=True,
        )
        return replace(made, **changes)

    def model(
        self, *layers: Layer, embed: dict[str, Any] | None = None, head: dict[str, Any] | None = None
    ) -> ModelSpec:
        """A whole model."""
        table = self.tensor(VOCABULARY, self.hidden, scale=1.0)
        return ModelSpec(
            architecture="random",
            name="random",
            vocabulary_size=VOCABULARY,
            hidden_size=self.hidden,
            context_length=4096,
            embed=replace(Embed(table), **(embed or {})),
            layers=layers,
            head=replace(Head(self.norm(), Linear(self.tensor(VOCABULARY, self.hidden))), **(head or {})),
        )


@pytest.fixture(scope="session")
def spec_maker() -> Callable[..., SpecMaker]:
    """The class, for tests that make their own models."""
    return SpecMaker
