"""What a person should know when an answer ended because the context is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localllm.events import Usage
    from localllm.llm import LLM


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
