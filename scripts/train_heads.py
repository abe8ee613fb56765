"""Train heads that guess the next tokens of a model (an MLP speculator) on text the model writes itself; needs torch.

    python scripts/train_heads.py MODEL.gguf HEADS.gguf [--medusa] [--writing 4] [--minutes 3] [--device cuda]

For Llama-shaped models with a ChatML template and tied embeddings, such as SmolLM2. The heads
(https://arxiv.org/abs/2404.19124) learn to guess tokens 2, 3, ... behind a row from its vector behind the final norm;
with --medusa each guesses its own place from that vector alone. docs/speculation.md describes the files;
scripts/train_drafter.py makes one that guesses better.

All in one run: writing, training, the file, and how often each head is right on conversations that were held out. The
weights kept are those that did best there, so a run that is longer than its text is worth does no harm.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch_llama import Model, Written, unit
from writing import converse

from localllm.gguf_io import QuantType, open_gguf
from localllm.gguf_io.quants.quantise import quantize
from localllm.gguf_io.writer import write_gguf
from localllm.speculation.made_for import NAME, made_for
from localllm.tokenizer import Tokenizer

Tensor = torch.Tensor


class Medusa(torch.nn.Module):
    """Heads that look at the model's vector only: h + silu(W h + b) for each place (https://arxiv.org/abs/2401.10774)."""

    def __init__(self, steps: int, hidden: int, table: Tensor) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(steps))
        for head in self.heads:
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
        self.output = torch.nn.Parameter(table.clone())

    def states(self, state: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """What tokens are read from, of each place; `embeddings` tell how many places."""
        return [state + functional.silu(head(state)) for head, _ in zip(self.heads, embeddings, strict=True)]

    def stored(self) -> dict[str, tuple[Tensor, QuantType]]:
        """Its tensors in the file, besides the output."""
        found = {}
        for i, head in enumerate(self.heads):
            found[f"speculator.medusa.{i}.weight"] = head.weight, QuantType.Q8_0
            found[f"speculator.medusa.{i}.bias"] = head.bias, QuantType.F32
        return found


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

    def stored(self) -> dict[str, tuple[Tensor, QuantType]]:
        """Its tensors in the file, besides the output."""
        found = {}
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            found[f"speculator.{i}.up.weight"] = up.weight, QuantType.Q8_0
            found[f"speculator.{i}.up.bias"] = up.bias, QuantType.F32
            found[f"speculator.{i}.down.weight"] = down.weight, QuantType.Q8_0
        return found


def train(
    heads: Heads | Medusa,
    data: dict[str, Tensor],
    table: Tensor,
    place: Tensor,
    seconds: float,
    batch: int,
    checks: int = 12,
) -> None:
    """Minimise the cross-entropy on what the model wrote; the weights that are best on the held-out end are kept."""
    steps = data["tokens"].shape[1] - 1
    count = len(data["hidden"])
    held_out = torch.arange(count - max(1, min(20000, count // 10)), count, device=table.device)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
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

    def check(rows: Tensor) -> list[float]:
        """How often each head is right where all before it were."""
        with torch.no_grad():
            parts = [losses(part)[1] for part in rows.split(batch)]
        right = [torch.cat([part[i] for part in parts]) for i in range(steps)]
        reached, shares = torch.ones_like(right[0]), []
        for own in right:
            shares.append(float(own[reached].float().mean()) if bool(reached.any()) else 0.0)
            reached = reached & own
        return shares

    def tokens_a_step(shares: list[float]) -> float:
        return float(1 + np.cumprod(shares).sum())

    began, number, checked = time.monotonic(), 0, 0
    best, kept = 0.0, copy.deepcopy(heads.state_dict())
    while (progress := (time.monotonic() - began) / seconds) < 1 or checked < checks:
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-3 * min(1.0, number / 100) * (0.5 + 0.5 * np.cos(np.pi * min(1.0, progress))) + 1e-6
        rows = torch.randint(0, max(1, int(held_out[0])), (batch,), device=table.device)
        loss, _ = losses(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        number += 1
        if progress * checks >= checked + 1 or progress >= 1:
            checked += 1
            shares = check(held_out)
            if (score := tokens_a_step(shares)) > best:
                best, kept = score, copy.deepcopy(heads.state_dict())
            text = " ".join(f"{share:.3f}" for share in shares)
            epochs = number * batch / max(1, count)
            print(
                f"  {number} steps, {epochs:.1f} epochs, loss {float(loss.detach()):.3f}; held out {text}", flush=True
            )
    heads.load_state_dict(kept)
    for name, rows in (("held out", held_out), ("of the training", torch.arange(len(held_out), device=table.device))):
        shares = check(rows)
        text = " ".join(f"{share:.3f}" for share in shares)
        print(
            f"right, {name}, where the text got as far: {text}; {tokens_a_step(shares):.2f} tokens a step", flush=True
        )


def spoken(shares: list[float]) -> str:
    """Three places each."""
    return " ".join(f"{share:.3f}" for share in shares)


def lessons(rows: Written, steps: int) -> dict[str, Tensor]:
    """Vectors of rows, and the tokens that follow each [n, steps + 1]."""
    count = len(rows.token) - steps
    ahead = torch.stack([rows.token[i : count + i] for i in range(steps + 1)], -1)
    whole = rows.text[steps:] == rows.text[:count]
    return {"hidden": rows.vectors[:count, 0][whole], "tokens": ahead[whole]}


def save(path: str, heads: Heads | Medusa, vocabulary: Tensor, made: dict[str, str]) -> None:
    """The file that `--speculate heads:FILE` reads."""
    tensors: dict[str, Any] = {}

    def add(name: str, values: Tensor, kind: QuantType) -> None:
        array = values.detach().float().cpu().numpy()
        tensors[name] = (kind, array.shape, quantize(array, kind))

    add("speculator.output.weight", heads.output, QuantType.Q8_0)
    stored = heads.stored()
    for key, (values, kind) in stored.items():
        add(key, values, kind)
    metadata = {
        "general.architecture": "localllm-speculator",
        "general.name": f"heads for {made[NAME]}",
        **made,
        "speculator.steps": sum(key.endswith(".bias") for key in stored),
        "speculator.vocabulary": vocabulary.cpu().numpy().astype(np.int32),
    }
    write_gguf(path, metadata, tensors)


def main() -> None:
    """Write text, train, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("heads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training, besides writing")
    parser.add_argument("--rounds", type=int, default=1000, help="of writing, at most")
    parser.add_argument("--writing", type=float, default=4.0, help="minutes after which no new round begins")
    parser.add_argument("--batch", type=int, default=2048, help="conversations a round")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--medusa", action="store_true", help="heads that do not look at the tokens in between")
    parser.add_argument("--inner", type=int, default=1024)
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
        rows = converse(writer, tokenizer, options.batch, options.answer, device)
        parts.append(lessons(rows, options.steps))
        print(f"round {number}: {len(parts[-1]['tokens'])} rows, {time.monotonic() - began:.0f} s", flush=True)
        if number == 0:
            print(repr(tokenizer.decode(rows.token[:100].tolist())))
    data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    table = model.weights["token_embd.weight"].float()
    counts = torch.bincount(data["tokens"][:, 1], minlength=len(table))
    vocabulary = counts.argsort(descending=True)[: options.vocabulary].sort().values
    print(f"{counts[vocabulary].sum() / counts.sum():.2%} of the tokens are in the vocabulary of the heads")
    place = torch.full((len(table),), -1, device=device)
    place[vocabulary] = torch.arange(len(vocabulary), device=device)
    hidden, output = table.shape[1], table[vocabulary]
    heads = (
        Medusa(options.steps, hidden, output) if options.medusa else Heads(options.steps, hidden, options.inner, output)
    )
    heads = heads.to(device)
    batch = 8192 if device == "cuda" else 64
    train(heads, data, table, place, 60 * options.minutes, batch)
    with open_gguf(options.model) as file:
        save(options.heads, heads, vocabulary, made_for(file))


if __name__ == "__main__":
    main()
