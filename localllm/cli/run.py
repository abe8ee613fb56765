"""`localllm run`: one answer to stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localllm.errors import RequestError
from localllm.events import Finished, PromptProgress, TextDelta
from localllm.full_context import full_context
from localllm.sampling import parameters_of

from .completion import ModelName
from .loading import open_model
from .options import Text, load_options, sampling_options, split_options
from .tables import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localllm.events import Event, Usage
    from localllm.llm import LLM

MAX_INPUT = 64 * 2**20  # bytes of a prompt; far above any context, far below any memory


def read_prompt(argument: str | None, file: str | None, otherwise: str = "") -> str:
    """The prompt: the argument, then the file, then what is piped in, joined by blank lines.

    UsageError where that is nothing; `otherwise` says what else could be meant.
    """
    parts = [] if argument is None else [argument]
    if file is not None:
        parts.append(read_text(file))
    if not sys.stdin.isatty() and (argument is None or file is None):
        piped = _decode(sys.stdin.buffer.read(MAX_INPUT + 1), "standard input")
        if piped.strip():
            parts.append(piped)
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise click.UsageError(f"no prompt: give it as an argument, with --file, or through a pipe{otherwise}")
    return text


def read_text(file: str) -> str:
    """The text of a file. Raises RequestError when it is too long or not UTF-8."""
    return _decode(Path(file).read_bytes()[: MAX_INPUT + 1], file)


def _decode(data: bytes, origin: str) -> str:
    if len(data) > MAX_INPUT:
        raise RequestError(f"{origin} holds more than {MAX_INPUT >> 20} MiB of text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{origin} is not UTF-8 text (byte {error.start})",
            hint="convert it first, such as with: iconv -f ISO-8859-1 -t UTF-8 FILE",
        ) from error


def write_stream(events: Iterable[Event]) -> tuple[str, Finished | None, PromptProgress | None]:
    """Write text to stdout as it comes; returns all of it, the end and the prompt's counts."""
    text, finished, progress = "", None, None
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
            click.echo(event.text, nl=False)
            sys.stdout.flush()
        elif isinstance(event, Finished):
            finished = event
        else:
            progress = event
    if text and not text.endswith("\n"):
        click.echo()
    return text, finished, progress


def summary(finished: Finished) -> str:
    """One line of figures about an answer."""
    usage, timings = finished.usage, finished.timings
    prompt_rate = (usage.prompt_tokens - usage.cached_tokens) / timings.prompt_seconds if timings.prompt_seconds else 0
    rate = (usage.completion_tokens - 1) / timings.decode_seconds if timings.decode_seconds else 0
    guesses = f" ({usage.accepted_tokens} of {usage.drafted_tokens} guesses right)" if usage.drafted_tokens else ""
    return (
        f"prompt {tokens(usage.prompt_tokens)} ({usage.cached_tokens} cached), {prompt_rate:.0f} tok/s; "
        f"first token after {timings.first_token_seconds:.2f} s; "
        f"answer {tokens(usage.completion_tokens)}, {rate:.1f} tok/s{guesses}; {finished.reason}"
    )


@click.command()
@click.argument("model", type=ModelName())
@click.argument("prompt", type=Text(), required=False)
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Read (more of) the prompt from a file.")
@click.option("--system", type=Text(), help="System prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of streaming text.")
@click.option("--verbose", "-v", is_flag=True, help="Say on stderr what is loaded and how fast it went.")
@load_options
@sampling_options
def run(
    model: str,
    prompt: str | None,
    file: str | None,
    system: str | None,
    raw: bool,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Answer PROMPT once with MODEL, a name or a .gguf file; pulls a model of the catalogue on first use.

    The exit code is 0 when text was given, also if the context was full before the answer was done (stderr says so).
    """
    text = read_prompt(prompt, file, "; a conversation is 'localllm chat MODEL'")
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template; it cannot be used with --raw")
    load, given = split_options(options)
    parameters_of(given)  # what is out of range is said before the weights are read
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    with open_model(model, load, verbose=verbose) as (llm, found):
        sampling = (dict(found.entry.sampling) if found.entry is not None else {}) | given
        if verbose:
            click.echo(llm.describe(), err=True)
        if as_json:
            result = llm.generate(text, **sampling) if raw else llm.chat(messages, **sampling)
            click.echo(json.dumps({"model": model, **asdict(result)}, ensure_ascii=False))
            _note_full_context(llm, result.finish_reason, result.usage, sampling)
            return
        events = llm.stream(text, **sampling) if raw else llm.stream_chat(messages, **sampling)
        _, finished, _ = write_stream(events)
        if finished is not None and finished.reason == "error":
            raise RequestError(finished.error or "the generation failed")
        if finished is not None:
            _note_full_context(llm, finished.reason, finished.usage, sampling)
            if verbose:
                click.echo(summary(finished), err=True)


def _note_full_context(llm: LLM, reason: str, usage: Usage, sampling: dict[str, Any]) -> None:
    if note := full_context(llm, reason, usage, sampling.get("max_tokens")):
        click.echo(note, err=True)
