"""Train a layer that guesses the next tokens of a model, on text the model writes itself; needs torch.

    python scripts/train_drafter.py MODEL.gguf DRAFTER.gguf [--writing 3] [--minutes 4] [--device cuda]

For Llama-shaped models with a ChatML template and tied embeddings, such as SmolLM2. The drafter is one decoder layer
over the model's own vectors (EAGLE, https://arxiv.org/abs/2401.15077) that in training already goes on from its own
guesses' states, as it will have to (EAGLE-3, https://arxiv.org/abs/2503.01840). docs/speculation.md describes the file.

All in one run: writing, training, the file, and how often each guess is right on conversations that were held out.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch_llama import Model, Written, rope, turned, unit
from writing import converse

from localllm.gguf_io import QuantType, open_gguf
from localllm.gguf_io.quants.quantise import quantize
from localllm.gguf_io.writer import write_gguf
from localllm.speculation.made_for import NAME, made_for
from localllm.tokenizer import Tokenizer

Tensor = torch.Tensor
WINDOW = 256  # rows that the layer sees together in training
HARD = 0.5  # weight of the likeliest token in what is learned; the rest is the model's own distribution
LATER = 0.85  # weight of each further guess, relative to the one before it
CHECKS = 5


class Drafter(torch.nn.Module):
    """A decoder layer, its entrances (from the model's vectors, from its own state) and a head for frequent tokens."""

    def __init__(self, model: Model, taps: int, output: Tensor) -> None:
        super().__init__()
        table = model.weights["token_embd.weight"]
        hidden = table.shape[1]
        self.heads, self.kv_heads, self.eps, self.base = model.heads, model.kv_heads, model.eps, model.base
        inner = model.weights["blk.0.ffn_down.weight"].shape[1]
        self.dim, self.taps = hidden // self.heads, taps
        self.first = torch.nn.Linear((2 + taps) * hidden, hidden, bias=False)
        self.again = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.attn_norm, self.ffn_norm = (torch.nn.Parameter(torch.ones(hidden)) for _ in range(2))
        self.output_norm = torch.nn.Parameter(model.weights["output_norm.weight"].float().clone())
        self.attn_qkv = torch.nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.attn_output = torch.nn.Linear(hidden, hidden, bias=False)
        self.ffn_in = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.ffn_down = torch.nn.Linear(inner, hidden, bias=False)
        for layer in (self.attn_output, self.ffn_down):
            torch.nn.init.normal_(layer.weight, std=0.5 * layer.in_features**-0.5)
        self.output = torch.nn.Parameter(output.float().clone())

    def sizes(self) -> dict[str, int | float]:
        """The keys of a Llama of one layer."""
        return {
            "block_count": 1,
            "context_length": 1 << 20,
            "embedding_length": self.ffn_down.out_features,
            "feed_forward_length": self.ffn_down.in_features,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": self.eps,
            "rope.freq_base": self.base,
        }

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        """RMS norm."""
        return functional.rms_norm(x, x.shape[-1:], eps=self.eps) * gain.to(x.dtype)

    def states(self, vectors: Tensor, embeddings: Tensor, segments: Tensor, steps: int) -> list[Tensor]:
        """The states [B, T, hidden] behind which guesses 0, 1, ... are chosen.

        `vectors` [B, T, 1 + taps, hidden] of the model's rows, `embeddings` [B, T + steps - 1, hidden] of the tokens
        chosen behind them, both divided as by `unit`; rows of the same `segments` [B, T] see each other. Guess j of a
        row stands j places behind it, and sees the model's rows up to it, and the guesses so far.
        """
        batch, count = segments.shape
        places = torch.arange(count + steps, device=segments.device)[None]
        mask = segments[:, :, None] == segments[:, None, :]
        mask &= torch.ones(count, count, dtype=torch.bool, device=segments.device).tril()
        bias = torch.zeros(mask.shape, device=segments.device).masked_fill_(~mask, -torch.inf)[:, None, None]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found: list[Tensor] = []
        for step in range(steps):
            known = embeddings[:, step : step + count]
            if step == 0:
                x = self.first(torch.cat([known, vectors[:, :, : 1 + self.taps].flatten(2)], -1))
            else:
                x = self.again(torch.cat([known, unit(found[-1])], -1))
            turn = rope(places[:, step : step + count], self.dim, self.base)
            joined = self.attn_qkv(self.norm(x, self.attn_norm)).view(batch, count, -1, self.dim).transpose(1, 2)
            both = turned(joined[:, : self.heads + self.kv_heads], turn)
            queries = both[:, : self.heads].unflatten(1, (self.kv_heads, -1))  # [B, kv_heads, group, T, dim]
            keys.append(both[:, self.heads :, None])
            values.append(joined[:, self.heads + self.kv_heads :, None])
            scores = [queries @ keys[0].transpose(-1, -2)]
            scores += [(queries * own).sum(-1, keepdim=True) for own in keys[1:]]
            weights = torch.cat([scores[0] * self.dim**-0.5 + bias, *(s * self.dim**-0.5 for s in scores[1:])], -1)
            weights = weights.softmax(-1).to(x.dtype)
            out = weights[..., :count] @ values[0]
            for index, own in enumerate(values[1:]):
                out = out + weights[..., count + index, None] * own
            x = x + self.attn_output(out.flatten(1, 2).transpose(1, 2).flatten(2))
            gate, up = self.ffn_in(self.norm(x, self.ffn_norm)).chunk(2, -1)
            x = x + self.ffn_down(functional.silu(gate) * up)
            found.append(self.norm(x, self.output_norm))
        return found


class Pool:
    """The rows written so far, in memory that was taken at once: parts and the whole would be too much."""

    def __init__(self, room: int, taps: int, hidden: int, device: str) -> None:
        self.vectors = torch.empty((room, 1 + taps, hidden), dtype=torch.float16, device=device)
        self.token, self.best, self.text = (torch.empty(room, dtype=torch.int32, device=device) for _ in range(3))
        self.used = self.texts = 0

    def add(self, rows: Written) -> bool:
        """False if there is no room for more."""
        count = min(len(rows.token), len(self.token) - self.used)
        at = slice(self.used, self.used + count)
        for mine, theirs in zip(
            (self.text, self.token, self.best, self.vectors),
            (rows.text + self.texts, rows.token, rows.best, rows.vectors),
            strict=True,
        ):
            mine[at] = theirs[:count]
        self.used += count
        self.texts += 4 * (int(rows.text.max()) // 4 + 1)  # every fourth text is not greedy
        return self.used < len(self.token)


class School:
    """What drafters are trained and judged on: windows of the rows, and what the model itself says behind each."""

    def __init__(self, pool: Pool, table: Tensor, vocabulary: Tensor, steps: int) -> None:
        self.pool, self.table, self.vocabulary, self.steps = pool, table, vocabulary, steps
        self.output = table[vocabulary]
        self.place = torch.full((len(table),), -1, device=table.device)
        self.place[vocabulary] = torch.arange(len(vocabulary), device=table.device)
        self.last = pool.used - WINDOW - steps  # where a window may begin
        text = pool.text[: pool.used]
        self.held_out = text % (100 if pool.texts > 2000 else 4) == 0  # greedy ones
        begins = torch.cat([text.new_ones(1, dtype=torch.bool), text[1:] != text[:-1]])
        self.checked = (self.held_out & begins)[: self.last].nonzero()[:, 0][:512]

    def lesson(self, drafter: Drafter, starts: Tensor, *, held_out: bool) -> tuple[Tensor, Tensor]:
        """(loss, [steps, B, T]: 1 right, 0 wrong, -1 nothing to guess) of the windows that begin at rows `starts`."""
        steps, pool = self.steps, self.pool
        rows = starts[:, None] + torch.arange(WINDOW + steps, device=starts.device)
        text, best, raw = pool.text[rows], self.place[pool.best[rows].long()], pool.vectors[rows]
        known = unit(self.table[pool.token[rows[:, :-1]].long()])
        vectors = unit(raw[:, :WINDOW].to(known.dtype))
        with torch.no_grad():
            teacher = (raw[:, 1:, 0].to(self.output.dtype) @ self.output.T).softmax(-1)
        wanted = self.held_out[rows[:, :WINDOW]] == held_out
        total, right = torch.zeros((), device=starts.device), []
        for step, state in enumerate(drafter.states(vectors, known, text[:, :WINDOW], steps)):
            valid = wanted & (text[:, 1 + step : 1 + step + WINDOW] == text[:, :WINDOW])
            target = best[:, 1 + step : 1 + step + WINDOW]
            logits = state @ drafter.output.T
            with torch.no_grad():
                right.append(torch.where(valid, (logits.argmax(-1) == target).int(), -1))
            soft = (teacher[:, step : step + WINDOW] * logits).sum(-1).float()
            hard = logits.gather(-1, target.clamp(min=0)[..., None])[..., 0].float()
            loss = logits.float().logsumexp(-1) - (1 - HARD) * soft - HARD * hard
            total = total + LATER**step * (loss * (valid & (target >= 0))).sum() / (valid.sum() + 1)
        return total, torch.stack(right)

    def shares(self, drafter: Drafter) -> list[float]:
        """How often each guess is right where all before it were, on what was held out."""
        with torch.no_grad(), self.precision():
            parts = [self.lesson(drafter, part, held_out=True)[1].flatten(1) for part in self.checked.split(32)]
        right = torch.cat(parts, 1)
        reached, shares = torch.ones_like(right[0], dtype=torch.bool), []
        for own in right:
            counted = reached & (own >= 0)
            shares.append(float((own[counted] == 1).float().mean()) if bool(counted.any()) else 0.0)
            reached = reached & (own == 1)
        return shares

    def precision(self) -> torch.autocast:
        """bf16 products where the table is kept so."""
        half = self.table.dtype == torch.bfloat16
        return torch.autocast(self.table.device.type, torch.bfloat16, enabled=half)


def train(school: School, drafter: Drafter, seconds: float, batch: int, rate: float, keep: Callable[[], None]) -> None:
    """AdamW for `seconds`; `keep` is called now and then, and at the end."""
    groups = [
        {"params": [p for p in drafter.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in drafter.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=school.table.is_cuda)
    began, number, kept = time.monotonic(), 0, 0
    while kept <= CHECKS:
        progress = (time.monotonic() - began) / seconds
        if progress * CHECKS >= kept + 1 or progress >= 1:
            kept = CHECKS + 1 if progress >= 1 else kept + 1
            epochs = number * batch * WINDOW / school.last
            shares = school.shares(drafter)
            text = " ".join(f"{share:.3f}" for share in shares)
            print(
                f"  {number} steps, {epochs:.1f} epochs; right, where the text got as far: {text}; "
                f"{1 + np.cumprod(shares).sum():.2f} tokens a step",
                flush=True,
            )
            keep()
        for group in optimizer.param_groups:
            group["lr"] = (
                rate * min(1.0, (number + 1) / 200) * (0.5 + 0.5 * math.cos(math.pi * min(1, progress))) + 1e-6
            )
        with school.precision():
            starts = torch.randint(0, school.last, (batch,), device=school.table.device)
            loss, _ = school.lesson(drafter, starts, held_out=False)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        number += 1


def save(path: str, drafter: Drafter, vocabulary: Tensor, taps: tuple[int, ...], made: dict[str, str]) -> None:
    """The file that `--speculate heads:FILE` reads."""
    tensors: dict[str, Any] = {}

    def add(name: str, values: Tensor, kind: QuantType = QuantType.Q4_1) -> None:
        array = values.detach().float().cpu().numpy()
        tensors[name] = (kind, array.shape, quantize(array, kind))

    add("speculator.first.weight", drafter.first.weight)
    add("speculator.again.weight", drafter.again.weight)
    add("token_embd.weight", drafter.output)
    add("output_norm.weight", drafter.output_norm, QuantType.F32)
    kv = drafter.kv_heads * drafter.dim
    queries, keys, values = drafter.attn_qkv.weight.split([drafter.heads * drafter.dim, kv, kv])
    gate, up = drafter.ffn_in.weight.chunk(2)
    for part, weight in {
        "attn_q": queries,
        "attn_k": keys,
        "attn_v": values,
        "attn_output": drafter.attn_output.weight,
        "ffn_gate": gate,
        "ffn_up": up,
        "ffn_down": drafter.ffn_down.weight,
    }.items():
        add(f"blk.0.{part}.weight", weight)
    for part in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{part}.weight", getattr(drafter, part), QuantType.F32)
    metadata = {
        "general.architecture": "localllm-speculator",
        "general.name": f"a drafter for {made[NAME]}",
        **made,
        "speculator.taps": np.array(taps, np.int32),
        "speculator.window": WINDOW,
        **{f"localllm-speculator.{key}": value for key, value in drafter.sizes().items()},
        "speculator.vocabulary": vocabulary.cpu().numpy().astype(np.int32),
    }
    write_gguf(path, metadata, tensors)


def main() -> None:
    """Write text, train, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("drafter")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--writing", type=float, default=3.0, help="minutes after which no new round begins")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training, besides writing")
    parser.add_argument("--rows", type=int, default=20_000_000, help="of text, at most")
    parser.add_argument("--batch", type=int, default=4096, help="conversations a round")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer, at most")
    parser.add_argument("--windows", type=int, default=64, help="of 256 rows in a step of training")
    parser.add_argument("--steps", type=int, default=4, help="guesses that follow each other in training")
    parser.add_argument("--taps", type=int, nargs="*", default=[10, 20], help="layers whose output is read too")
    parser.add_argument("--vocabulary", type=int, default=8192, help="how many (frequent) tokens are guessed")
    parser.add_argument("--half", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--rate", type=float, default=1.5e-3, help="of learning")
    options = parser.parse_args()
    torch.manual_seed(0)
    device, began = options.device, time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model.load(options.model, device, tuple(options.taps))
    writer = model.to(torch.bfloat16) if device == "cuda" else model
    tokenizer = Tokenizer.from_gguf(options.model)
    table = model.weights["token_embd.weight"]
    pool = Pool(options.rows, len(options.taps), table.shape[1], device)
    print(f"loaded after {time.monotonic() - began:.0f} s", flush=True)
    number = 0
    while number == 0 or time.monotonic() - began < 60 * options.writing:
        rows = converse(writer, tokenizer, options.batch, options.answer, device)
        room = pool.add(rows)
        if number % 8 == 0:
            text = rows.text == (number * 7) % 64
            print(f"round {number}: {pool.used} rows, {time.monotonic() - began:.0f} s", flush=True)
            print(repr(tokenizer.decode(rows.token[text].tolist())[:200]), flush=True)
        number += 1
        if not room:
            break
    print(f"{pool.used} rows of {pool.texts} texts after {time.monotonic() - began:.0f} s", flush=True)
    counts = torch.bincount(pool.best[: pool.used], minlength=len(table))
    vocabulary = counts.argsort(descending=True)[: options.vocabulary].sort().values
    for most in (options.vocabulary // 4, options.vocabulary // 2, options.vocabulary):
        print(f"{most} tokens are {counts.sort(descending=True).values[:most].sum() / counts.sum():.2%} of the text")
    school = School(pool, table.bfloat16() if options.half else table, vocabulary, options.steps)
    drafter = Drafter(model, len(options.taps), table[vocabulary]).to(device)
    with open_gguf(options.model) as file:
        made = made_for(file)
    train(
        school,
        drafter,
        60 * options.minutes,
        options.windows,
        options.rate,
        lambda: save(options.drafter, drafter, vocabulary, tuple(options.taps), made),
    )
    if device == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB at most", flush=True)


if __name__ == "__main__":
    main()
