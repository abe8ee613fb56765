"""A Llama in torch, and the writing of many texts at once: what the heads of `train_heads.py` learn from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as functional

from localllm.gguf_io import dequantize, open_gguf

Tensor = torch.Tensor


@dataclass(frozen=True)
class Model:
    """A Llama in torch. `weights` by GGUF name; vectors as the file stores them (rope turns neighbouring values)."""

    weights: dict[str, Tensor]
    layers: int
    heads: int
    kv_heads: int
    eps: float
    base: float

    @classmethod
    def load(cls, path: str, device: str) -> Model:
        """Dequantise a file."""
        file = open_gguf(path)
        weights = {
            name: torch.from_numpy(np.ascontiguousarray(dequantize(tensor), np.float32)).to(device)
            for name, tensor in file.tensors.items()
        }
        metadata = file.metadata
        return cls(
            weights,
            metadata.integer("llama.block_count"),
            metadata.integer("llama.attention.head_count"),
            metadata.integer("llama.attention.head_count_kv"),
            metadata.floating("llama.attention.layer_norm_rms_epsilon"),
            metadata.floating("llama.rope.freq_base"),
        )

    def to(self, dtype: torch.dtype) -> Model:
        """A copy in another precision."""
        return replace(self, weights={name: weight.to(dtype) for name, weight in self.weights.items()})

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm."""
        return functional.rms_norm(x.float(), x.shape[-1:], self.weights[name].float(), self.eps).to(x.dtype)

    def forward(self, tokens: Tensor, positions: Tensor, cache: Tensor, start: int, mask: Tensor) -> Tensor:
        """[B, T, hidden] behind the final norm. `cache` [layers, 2, B, kv_heads, L, dim] is filled from `start`."""
        w, batch, count = self.weights, *tokens.shape
        x = w["token_embd.weight"][tokens]
        dim = x.shape[-1] // self.heads
        frequencies = self.base ** (-torch.arange(0, dim, 2, device=x.device).float() / dim)
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def turned(v: Tensor) -> Tensor:
            a, b = v[..., 0::2], v[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

        for layer in range(self.layers):
            p = f"blk.{layer}."
            y = self.norm(x, p + "attn_norm.weight")
            q, k, v = (
                (y @ w[f"{p}attn_{part}.weight"].T).view(batch, count, -1, dim).transpose(1, 2) for part in "qkv"
            )
            cache[layer, 0, :, :, start : start + count] = turned(k)
            cache[layer, 1, :, :, start : start + count] = v
            keys, values = cache[layer, :, :, :, : start + count]
            out = attend(turned(q), keys, values, mask)
            x = x + out.transpose(1, 2).reshape(batch, count, -1) @ w[p + "attn_output.weight"].T
            y = self.norm(x, p + "ffn_norm.weight")
            gate = functional.silu(y @ w[p + "ffn_gate.weight"].T) * (y @ w[p + "ffn_up.weight"].T)
            x = x + gate @ w[p + "ffn_down.weight"].T
        return self.norm(x, "output_norm.weight")

    def new_cache(self, batch: int, length: int) -> Tensor:
        """Zeros."""
        like = self.weights["token_embd.weight"]
        dim = like.shape[1] // self.heads
        return like.new_zeros((self.layers, 2, batch, self.kv_heads, length, dim))


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Grouped attention; one row of each sequence reads keys and values once for all heads of a group."""
    if queries.shape[2] > 1:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
    batch, heads, _, dim = queries.shape
    grouped = queries.reshape(batch, keys.shape[1], heads // keys.shape[1], dim)
    scores = (grouped @ keys.transpose(2, 3)) * dim**-0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights @ values).reshape(batch, heads, 1, dim)


@torch.no_grad()
def write(model: Model, prompts: Tensor, lengths: Tensor, count: int, temperature: Tensor) -> Tensor:
    """Continue left-padded `prompts` [B, T] by `count` tokens [B, count]."""
    batch, width = prompts.shape
    device = prompts.device
    cache = model.new_cache(batch, width + count)
    pad = width - lengths
    columns = torch.arange(width + count, device=device)
    seen = columns[None] >= pad[:, None]
    causal = columns[None, :width] <= columns[:width, None]
    mask = seen[:, None, None, :width] & causal[None, None]
    mask |= torch.eye(width, dtype=torch.bool, device=device)
    positions = (columns[None, :width] - pad[:, None]).clamp(min=0)
    hidden = model.forward(prompts, positions, cache, 0, mask)[:, -1]
    table, made = model.weights["token_embd.weight"], []
    for step in range(count):
        logits = (hidden @ table.T).float()
        noise = -torch.empty_like(logits).exponential_().log()  # Gumbel
        token = (logits + noise * temperature[:, None]).argmax(-1)
        made.append(token)
        if step + 1 < count:
            end = width + step + 1
            at = (columns[width + step] - pad)[:, None]
            hidden = model.forward(token[:, None], at, cache, width + step, seen[:, None, None, :end])[:, 0]
    return torch.stack(made, 1)
