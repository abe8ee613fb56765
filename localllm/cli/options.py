"""Options that commands share: how to load a model, and how to sample from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from localllm.kernels.executor import MOST_THREADS
from localllm.sampling import SamplingParameters
from localllm.settings import SIZE_UNITS

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType[int]):
    """A number of bytes: 6GiB, 500MB, 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of a number with a unit."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size; write 6GiB, 500MB or a number of bytes", param, ctx)
        return int(float(match[1]) * SIZE_UNITS[(match[2] or "").lower()])


class Text(click.ParamType[str]):
    """Words for a model. Where the system's encoding could not read them they are UTF-8, as everywhere else."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The words, read as UTF-8 where they came as bytes."""
        return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_LOAD = (
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda", "hybrid", "reference"]), help="Where to compute."
    ),
    click.option(
        "--threads", "-t", type=click.IntRange(1, MOST_THREADS), help="CPU threads; by default as many as are fastest."
    ),
    click.option("--vram", type=Size(), help="GPU memory to use at most, such as 6GiB."),
    click.option("--context", "-c", type=click.IntRange(1), help="Tokens of context to make room for."),
    click.option("--kv", type=click.Choice(["f16", "f32", "q8", "q4", "q2"]), help="How the KV cache is stored."),
    click.option("--kv-policy", help="Lossy: keep or read a part of the keys; h2o:TOKENS or sparq:COMPONENTS:TOKENS."),
    click.option("--window", type=click.IntRange(1), help="Keep only this many tokens (sinks and a sliding window)."),
    click.option("--sinks", type=click.IntRange(0), help="First tokens to keep for ever; default: the system prompt."),
    click.option(
        "--context-policy",
        type=click.Choice(["error", "window"]),
        help="When the context is full: end the answer and say so (error), or drop old tokens and go on (window).",
    ),
    click.option(
        "--mode", type=click.Choice(["exact", "sparse", "turbo"]), help="How much to compute; turbo loses a little."
    ),
    click.option(
        "--speculate",
        help="Guess ahead to be faster, with the same text: auto, off, lookup, next, model:NAME or heads:FILE.",
    ),
    click.option(
        "--chat-template",
        type=click.Path(exists=True, dir_okay=False),
        help="A Jinja file to use instead of the model's own chat template.",
    ),
)

_SAMPLING = (
    click.option("--max-tokens", "-n", type=click.IntRange(0), help="Tokens to generate at most."),
    click.option("--temperature", type=click.FloatRange(0), help="0 always takes the likeliest token."),
    click.option("--top-k", type=int, help="Only the k likeliest tokens; 0 is off."),
    click.option("--top-p", type=click.FloatRange(0, 1), help="Only the likeliest tokens up to this probability."),
    click.option("--min-p", type=click.FloatRange(0, 1), help="Only tokens of this share of the best probability."),
    click.option("--typical-p", type=click.FloatRange(0, 1), help="Locally typical sampling; 1 is off."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), help="Above 1: avoid recent tokens."),
    click.option("--presence-penalty", type=click.FloatRange(-2, 2), help="Avoid tokens that were generated before."),
    click.option("--frequency-penalty", type=click.FloatRange(-2, 2), help="The same, more with each occurrence."),
    click.option("--dry-multiplier", type=click.FloatRange(0), help="Strength of DRY against repetition; 0 is off."),
    click.option("--xtc-probability", type=click.FloatRange(0, 1), help="How often XTC drops the top choices."),
    click.option("--xtc-threshold", type=click.FloatRange(0, 1), help="Probability that makes a top choice for XTC."),
    click.option("--seed", type=click.IntRange(0), help="The same seed gives the same text."),
    click.option("--stop", type=Text(), multiple=True, help="Stop before this text; may be given several times."),
    click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the model's own end."),
)


def load_options(command: Command) -> Command:
    """Add the options of every command that loads a model; values not given arrive as None."""
    for option in reversed(_LOAD):
        command = option(command)
    return command


def sampling_options(command: Command) -> Command:
    """Add the sampling options; values not given arrive as None (or an empty tuple)."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def split_options(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take a command's options apart: (keywords of LLM, fields of SamplingParameters), without those not given."""
    fields = set(SamplingParameters.__dataclass_fields__)
    present = {name: value for name, value in given.items() if value is not None and value != ()}
    return (
        {name: value for name, value in present.items() if name not in fields},
        {name: value for name, value in present.items() if name in fields},
    )
