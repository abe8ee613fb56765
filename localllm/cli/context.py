"""Context, window and sinks on the command line: which go together, and what is said when the context is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localllm.events import Usage
    from localllm.llm import LLM


def check_flags(flags: Mapping[str, Any], *, slides: bool = False) -> None:
    """Raise UsageError for flags of one command line that contradict each other, or that nothing would heed.

    `slides`: the command slides a window over the whole context unless it is told otherwise (chat).
    """
    window, context, policy = (flags.get(name) for name in ("window", "context", "context_policy"))
    if window is not None and policy == "error":
        raise click.UsageError(
            f"--window {window} slides when it is full, and --context-policy error ends the answer there; give one of "
            f"the two (--context {window} ends after so many tokens)"
        )
    if window is not None and context is not None and window > context:
        raise click.UsageError(
            f"a window of {window} tokens is larger than the context of {context}; use --window {context} or less, or "
            f"--context {window} or more"
        )
    ends = policy == "error" or not (slides or policy == "window")
    if flags.get("sinks") is not None and window is None and ends and not _slides_by_settings(policy):
        raise click.UsageError(
            "--sinks says which tokens a sliding window keeps, and there is no window; give --window TOKENS or "
            "--context-policy window too"
        )


def _slides_by_settings(policy: str | None) -> bool:
    from localllm.settings import Settings

    settings = Settings.load({})
    return policy is None and (settings.window is not None or settings.context_policy == "window")


def with_room(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `LLM` whose context, from elsewhere than the window, is no smaller than the window."""
    window, context = keywords.get("window"), keywords.get("context")
    return (
        keywords | {"context": window} if window is not None and context is not None and window > context else keywords
    )


def long_context(llm: LLM) -> str | None:
    """A warning about a context above what the model was trained for."""
    trained = llm.spec.context_length
    if llm.slides or llm.context <= trained:
        return None
    return (
        f"warning: the context of {llm.context} tokens is more than the {trained} that the model was trained for; what "
        "it writes beyond them may make no sense"
    )


def full_context(llm: LLM, reason: str, usage: Usage, most: int | None) -> str | None:
    """What to tell when an answer ended because the context is full, not because `most` tokens were asked for."""
    from localllm.cache import LEAST_WINDOW

    written, larger = usage.completion_tokens, min(2 * llm.context, llm.spec.context_length)
    if reason != "length" or llm.slides or usage.prompt_tokens + written < llm.context or written == most:
        return None
    ways = [f"--context {larger} makes room for more"] if larger > llm.context else []
    if llm.can_slide and llm.context >= LEAST_WINDOW:
        ways.append("--context-policy window drops the oldest tokens and goes on")
    return (
        f"the context of {llm.context} tokens is full (prompt {usage.prompt_tokens}, answer {written}), so the answer "
        f"ends here{'; ' if ways else ''}{', '.join(ways)}"
    )
