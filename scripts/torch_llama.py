"""A Llama in torch, and the writing of many texts at once: what a drafter trained by `train_drafter.py` learns from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional

from localllm.gguf_io import dequantize, open_gguf

Tensor = torch.Tensor
COMPACT_EVERY, FEW = 16, 0.85  # steps after which texts that have ended leave the batch, if no more than this is left


@dataclass(frozen=True)
class Model:
    """A Llama in torch. `weights` by GGUF name; vectors as the file stores them (rope turns neighbouring values).

    `taps`: numbers of layers whose output is handed out too.
    """

    weights: dict[str, Tensor]
    layers: int
    heads: int
    kv_heads: int
    eps: float
    base: float
    taps: tuple[int, ...] = ()

    @classmethod
    def load(cls, path: str, device: str, taps: tuple[int, ...] = ()) -> Model:
        """Dequantise a file."""
        file = open_gguf(path)
        weights = {
            name: torch.from_numpy(np.ascontiguousarray(dequantize(tensor), np.float32)).to(device)
            for name, tensor in file.tensors.items()
        }
        metadata = file.metadata
        layers = metadata.integer("llama.block_count")
        for layer in range(layers):  # fewer, larger products
            for joined, parts in (("attn_qkv", ("attn_q", "attn_k", "attn_v")), ("ffn_in", ("ffn_gate", "ffn_up"))):
                names = [f"blk.{layer}.{part}.weight" for part in parts]
                weights[f"blk.{layer}.{joined}.weight"] = torch.cat([weights.pop(name) for name in names])
        return cls(
            weights,
            layers,
            metadata.integer("llama.attention.head_count"),
            metadata.integer("llama.attention.head_count_kv"),
            metadata.floating("llama.attention.layer_norm_rms_epsilon"),
            metadata.floating("llama.rope.freq_base"),
            taps,
        )

    def to(self, dtype: torch.dtype) -> Model:
        """A copy in another precision."""
        return replace(self, weights={name: weight.to(dtype) for name, weight in self.weights.items()})

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm."""
        return functional.rms_norm(x, x.shape[-1:], self.weights[name], self.eps)

    def forward(self, tokens: Tensor, positions: Tensor, cache: list[Tensor], start: int, mask: Tensor) -> list[Tensor]:
        """[B, T, hidden] behind the final norm, and behind each tap (not normed).

        `cache`, for each layer [2, B, kv_heads, L, dim], is filled from `start`; `mask` [B, 1, T, start + T].
        """
        w, batch, count = self.weights, *tokens.shape
        x = w["token_embd.weight"][tokens]
        dim = x.shape[-1] // self.heads
        turn, unseen = rope(positions, dim, self.base), ~mask[:, :, None]
        tapped = []
        for layer in range(self.layers):
            p = f"blk.{layer}."
            y = self.norm(x, p + "attn_norm.weight")
            joined = (y @ w[f"{p}attn_qkv.weight"].T).view(batch, count, -1, dim).transpose(1, 2)
            both = turned(joined[:, : self.heads + self.kv_heads], turn)
            cache[layer][0, :, :, start : start + count] = both[:, self.heads :]
            cache[layer][1, :, :, start : start + count] = joined[:, self.heads + self.kv_heads :]
            keys, values = cache[layer][:, :, :, : start + count]
            out = attend(both[:, : self.heads], keys, values, unseen)
            x = x + out.transpose(1, 2).reshape(batch, count, -1) @ w[p + "attn_output.weight"].T
            y = self.norm(x, p + "ffn_norm.weight")
            gate, up = (y @ w[p + "ffn_in.weight"].T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ w[p + "ffn_down.weight"].T
            if layer in self.taps:
                tapped.append(x)
        return [self.norm(x, "output_norm.weight"), *tapped]

    def new_cache(self, batch: int, length: int) -> list[Tensor]:
        """Zeros."""
        like = self.weights["token_embd.weight"]
        dim = like.shape[1] // self.heads
        return [like.new_zeros((2, batch, self.kv_heads, length, dim)) for _ in range(self.layers)]


def rope(positions: Tensor, dim: int, base: float) -> Tensor:
    """Turns [B, 1, T, dim / 2] at `positions` [B, T], as complex numbers."""
    frequencies = base ** (-torch.arange(0, dim, 2, device=positions.device).float() / dim)
    angles = positions[:, None, :, None].float() * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def turned(v: Tensor, turn: Tensor) -> Tensor:
    """`v` [B, heads, T, dim] with neighbouring values turned."""
    return torch.view_as_real(torch.view_as_complex(v.float().unflatten(-1, (-1, 2))) * turn).flatten(-2).to(v.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, unseen: Tensor) -> Tensor:
    """Grouped attention [B, heads, T, dim]: a group's heads read keys and values once. `unseen` [B, 1, 1, T, L]."""
    heads, count, dim = queries.shape[1:]
    group = heads // keys.shape[1]
    rows = queries.unflatten(1, (-1, group)).flatten(2, 3)  # [B, kv_heads, group * T, dim]
    scores = (rows @ keys.transpose(2, 3) * dim**-0.5).unflatten(2, (group, count))
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    return (weights.flatten(2, 3) @ values).unflatten(2, (group, count)).flatten(1, 2)


def unit(x: Tensor) -> Tensor:
    """Divided by the root of the mean square."""
    return functional.rms_norm(x, x.shape[-1:], eps=1e-6)


class Written(NamedTuple):
    """Rows of texts, in the order of the texts, and in each up to its end: [n, ...]."""

    text: Tensor  # number of the prompt
    token: Tensor  # that was chosen
    best: Tensor  # the likeliest
    vectors: Tensor  # [n, 1 + taps, hidden]: what it was chosen from, and of the taps, divided as by `unit`


@torch.no_grad()
def write(
    model: Model, prompts: Tensor, lengths: Tensor, count: int, temperature: Tensor, end: int, *, vectors: bool
) -> Written:
    """Continue left-padded `prompts` [B, T] by up to `count` tokens, each as far as `end`, which is its last token."""
    batch, width = prompts.shape
    device = prompts.device
    cache = model.new_cache(batch, width + count)
    number = torch.arange(batch, device=device)
    pad = width - lengths
    columns = torch.arange(width + count, device=device)
    seen = columns[None] >= pad[:, None]
    causal = columns[None, :width] <= columns[:width, None]
    mask = seen[:, None, None, :width] & causal[None, None]
    mask |= torch.eye(width, dtype=torch.bool, device=device)
    positions = (columns[None, :width] - pad[:, None]).clamp(min=0)
    found = [each[:, -1] for each in model.forward(prompts, positions, cache, 0, mask)]
    table = model.weights["token_embd.weight"]
    alive = torch.ones_like(number, dtype=torch.bool)
    made: list[Written] = []
    alives: list[Tensor] = []
    warm = temperature.nonzero()[:, 0]
    for step in range(count):
        logits = found[0] @ table.T
        best = token = logits.argmax(-1)
        if len(warm):
            some = logits[warm].float()
            noise = torch.empty_like(some).exponential_().log_()  # minus Gumbel
            token = best.index_copy(0, warm, (some - noise * temperature[warm, None]).argmax(-1))
        row = torch.stack([found[0], *map(unit, found[1:])], 1).half() if vectors else table.new_zeros(len(best))
        made.append(Written(number, token, best, row))
        alives.append(alive)
        alive = alive & (token != end)
        if step + 1 == count:
            break
        if step % COMPACT_EVERY == COMPACT_EVERY - 1:
            left = alive.nonzero()[:, 0]
            if not len(left):
                break
            if len(left) < FEW * len(alive):  # the others' places are worth a copy of the cache
                number, token, alive, pad, seen, temperature = (
                    each[left] for each in (number, token, alive, pad, seen, temperature)
                )
                warm = temperature.nonzero()[:, 0]
                for layer in range(model.layers):
                    cache[layer] = cache[layer][:, left]
        at = (columns[width + step] - pad)[:, None]
        visible = seen[:, None, None, : width + step + 1]
        found = [each[:, 0] for each in model.forward(token[:, None], at, cache, width + step, visible)]
    kept = torch.cat(alives).nonzero()[:, 0]
    all_of = Written(*(torch.cat(parts) for parts in zip(*made, strict=True)))
    order = kept[all_of.text[kept].argsort(stable=True)]
    return Written(*(each[order] for each in all_of))
