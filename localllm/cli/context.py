"""Context, window and sinks on the command line: which go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    ends = policy == "error" or (policy is None and not slides)
    if flags.get("sinks") is not None and window is None and ends and not _slides_by_settings(policy):
        raise click.UsageError(
            "--sinks says which tokens a sliding window keeps, and there is no window; give --window TOKENS or "
            "--context-policy window too"
        )


def _slides_by_settings(policy: str | None) -> bool:
    from localllm.settings import Settings

    settings = Settings.load({})
    return policy is None and (settings.window is not None or settings.context_policy not in (None, "error"))


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
