"""Train heads that guess the next tokens of a model (an MLP speculator) on text the model writes itself; needs torch.

    python scripts/train_heads.py MODEL.gguf HEADS.gguf [--minutes 2] [--device cuda]

For Llama-shaped models with a ChatML template and tied embeddings, such as SmolLM2. The model first writes user
questions (https://arxiv.org/abs/2406.08464), then answers them; the heads (https://arxiv.org/abs/2404.19124) learn to
guess tokens 2, 3, ... behind a row from its vector behind the final norm. docs/speculation.md describes the file.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from localllm.gguf_io import QuantType, dequantize, open_gguf
from localllm.gguf_io.quants.quantise import quantize
from localllm.gguf_io.writer import write_gguf
from localllm.tokenizer import Tokenizer

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QUESTION, ANSWER, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"
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


def conversations(model: Model, tokenizer: Tokenizer, batch: int, answer: int, device: str) -> tuple[Tensor, Tensor]:
    """(tokens [B, T], which of them the model answered with [B, T]) of self-made questions and answers."""
    ids = {text: tokenizer.encode(text, add_bos=False, parse_special=True) for text in (SYSTEM + QUESTION, ANSWER, END)}
    first, then, end = ids.values()
    start = torch.tensor([first] * batch, device=device)
    ones = torch.ones(batch, device=device)
    questions = write(model, start, ones.long() * len(first), 64, ones * 0.9).tolist()
    prompts = []
    for question in questions:
        stop = question.index(end[0]) if end[0] in question else 0
        if stop > 3:
            prompts.append(first + question[:stop] + then)
    width = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    temperature = torch.where(torch.arange(len(prompts), device=device) % 4 == 3, 0.7, 0.0)
    answers = write(model, padded, lengths, answer, temperature)
    alive = torch.cat([torch.ones_like(answers[:, :1]), (answers != end[0]).long().cumprod(1)[:, :-1]], 1).bool()
    rows = [torch.cat([padded[i, width - lengths[i] :], answers[i]]) for i in range(len(prompts))]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    answered = torch.zeros_like(tokens, dtype=torch.bool)
    for i, length in enumerate(lengths.tolist()):
        answered[i, length : length + answer] = alive[i]
    return tokens, answered


class Heads(torch.nn.Module):
    """Recurrent heads: from the state s and the last token's embedding e, s' = s + down silu(up [norm s, norm e])."""

    def __init__(self, steps: int, hidden: int, inner: int, table: Tensor) -> None:
        super().__init__()
        self.up = torch.nn.ModuleList(torch.nn.Linear(2 * hidden, inner) for _ in range(steps))
        self.down = torch.nn.ModuleList(torch.nn.Linear(inner, hidden, bias=False) for _ in range(steps))
        for layer in self.down:
            torch.nn.init.zeros_(layer.weight)
        self.output = torch.nn.Parameter(table.clone())

    def states(self, state: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """The state behind each token; `embeddings` of the tokens that are known (or guessed) so far."""
        found = []
        for up, down, embedding in zip(self.up, self.down, embeddings, strict=True):
            joined = torch.cat([unit(state), unit(embedding)], -1)
            state = state + down(functional.silu(up(joined)))
            found.append(state)
        return found


def unit(x: Tensor) -> Tensor:
    """Divided by the root of the mean square."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)


def train(
    heads: Heads, data: dict[str, Tensor], table: Tensor, place: Tensor, seconds: float, batch: int
) -> list[float]:
    """Minimise the cross-entropy on what the model wrote; returns each head's share of right guesses, held out."""
    steps = len(heads.up)
    count = len(data["hidden"])
    held_out = torch.arange(count - min(20000, count // 10), count, device=table.device)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
    began, number = time.monotonic(), 0
    bf16 = table.is_cuda

    def losses(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        tokens = data["tokens"][rows]
        with torch.autocast(table.device.type, torch.bfloat16, enabled=bf16):
            states = heads.states(data["hidden"][rows].float(), [table[tokens[:, i]].float() for i in range(steps)])
            total, right = torch.zeros((), device=table.device), []
            for i, state in enumerate(states):
                logits = (state @ heads.output.T).float()
                target = place[tokens[:, i + 1]]
                total = total + functional.cross_entropy(logits, target, ignore_index=-1) * 0.9**i
                right.append(logits.argmax(-1) == target)
        return total, right

    while (progress := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-3 * min(1.0, number / 100) * (0.5 + 0.5 * np.cos(np.pi * progress)) + 1e-6
        rows = torch.randint(0, int(held_out[0]), (batch,), device=table.device)
        loss, _ = losses(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 200 == 0:
            print(f"  step {number}, loss {float(loss.detach()):.3f}, {time.monotonic() - began:.0f} s", flush=True)
        number += 1
    with torch.no_grad():
        _, right = losses(held_out)
        reached, shares = torch.ones_like(right[0]), []
        for own in right:
            shares.append(float(own[reached].float().mean()))
            reached = reached & own
    return shares


def collect(model: Model, tokens: Tensor, answered: Tensor, steps: int) -> dict[str, Tensor]:
    """Vectors of the rows in front of answers, and the tokens that follow each."""
    found: dict[str, list[Tensor]] = {"hidden": [], "tokens": []}
    width = tokens.shape[1]
    mask = torch.ones(width, width, dtype=torch.bool, device=tokens.device).tril()
    for first in range(0, len(tokens), 64):
        part = tokens[first : first + 64]
        positions = torch.arange(width, device=tokens.device).expand_as(part)
        with torch.no_grad():
            hidden = model.forward(part, positions, model.new_cache(len(part), width), 0, mask)
        ahead = torch.stack([part[:, 1 + i : width - steps + i] for i in range(steps + 1)], -1)
        wanted = answered[first : first + 64, steps + 1 :]
        found["hidden"].append(hidden[:, : width - steps - 1][wanted].half())
        found["tokens"].append(ahead[wanted])
    return {name: torch.cat(parts) for name, parts in found.items()}


def save(path: str, heads: Heads, vocabulary: Tensor, name: str) -> None:
    """The file that `--speculate heads:FILE` reads."""
    tensors: dict[str, Any] = {}

    def add(name: str, values: Tensor, kind: QuantType) -> None:
        array = values.detach().float().cpu().numpy()
        tensors[name] = (kind, array.shape, quantize(array, kind))

    add("speculator.output.weight", heads.output, QuantType.Q8_0)
    for i, (up, down) in enumerate(zip(heads.up, heads.down, strict=True)):
        add(f"speculator.{i}.up.weight", up.weight, QuantType.Q8_0)
        add(f"speculator.{i}.up.bias", up.bias, QuantType.F32)
        add(f"speculator.{i}.down.weight", down.weight, QuantType.Q8_0)
    metadata = {
        "general.architecture": "localllm-speculator",
        "general.name": f"heads for {name}",
        "speculator.steps": len(heads.up),
        "speculator.vocabulary": vocabulary.cpu().numpy().astype(np.int32),
    }
    write_gguf(path, metadata, tensors)


def main() -> None:
    """Write text, train, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("heads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=1.5, help="of training, besides writing")
    parser.add_argument("--rounds", type=int, default=12, help="of writing, at most")
    parser.add_argument("--writing", type=float, default=1.0, help="minutes after which no new round begins")
    parser.add_argument("--batch", type=int, default=2048, help="conversations a round")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=4096, help="how many (frequent) tokens are guessed")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = options.device
    began = time.monotonic()
    model = Model.load(options.model, device)
    writer = model.to(torch.bfloat16) if device == "cuda" else model
    tokenizer = Tokenizer.from_gguf(options.model)
    print(f"loaded after {time.monotonic() - began:.0f} s", flush=True)
    parts = []
    for number in range(options.rounds):
        if number and time.monotonic() - began > 60 * options.writing:
            break
        tokens, answered = conversations(writer, tokenizer, options.batch, options.answer, device)
        parts.append(collect(model, tokens, answered, options.steps))
        print(f"round {number}: {len(parts[-1]['tokens'])} rows, {time.monotonic() - began:.0f} s", flush=True)
        if number == 0:
            for row in range(min(3, len(tokens))):
                print(repr(tokenizer.decode(tokens[row].tolist())[100:500]))
    data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    table = model.weights["token_embd.weight"].float()
    counts = torch.bincount(data["tokens"][:, 1], minlength=len(table))
    vocabulary = counts.argsort(descending=True)[: options.vocabulary].sort().values
    print(f"{counts[vocabulary].sum() / counts.sum():.2%} of the tokens are in the vocabulary of the heads")
    place = torch.full((len(table),), -1, device=device)
    place[vocabulary] = torch.arange(len(vocabulary), device=device)
    heads = Heads(options.steps, table.shape[1], options.inner, table[vocabulary]).to(device)
    batch = 8192 if device == "cuda" else 64
    shares = train(heads, data, table, place, 60 * options.minutes, batch)
    print("right, where the text got as far:", " ".join(f"{share:.3f}" for share in shares))
    save(options.heads, heads, vocabulary, options.model.rpartition("/")[2])


if __name__ == "__main__":
    main()
