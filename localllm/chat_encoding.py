"""A conversation as token ids: ready for the answer, and how much of it is the system prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localllm.errors import LocalLLMError, RequestError

from .chat_template import check_variables, encode_chat

if TYPE_CHECKING:
    from localllm.tokenizer import Tokenizer

    from .chat_template import ChatTemplate


def conversation_ids(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_options: Mapping[str, Any],
) -> list[int]:
    """Ids up to where the answer begins, or goes on when the last message is the assistant's; RequestError for none."""
    if not messages:
        raise RequestError("there is no message to answer", parameter="messages")
    last = messages[-1] if isinstance(messages, Sequence) else None  # what is no message, the template's check names
    begun = last if isinstance(last, Mapping) and last.get("role") == "assistant" else None
    asked = messages if begun is None else messages[:-1]
    options = check_variables(template_options)
    ids = encode_chat(template, tokenizer, asked, tools=tools, add_generation_prompt=True, **options)
    if begun is not None:
        ids += tokenizer.encode(str(begun.get("content") or ""), add_bos=False)
    return ids


def system_tokens(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> int | None:
    """Tokens at the beginning of `ids` that are those of the system prompt alone; None without one."""
    system = [message for message in messages[:1] if message.get("role") in ("system", "developer")]
    if not system:
        return None
    try:
        alone = encode_chat(template, tokenizer, system, tools=tools, add_generation_prompt=False)
    except LocalLLMError:
        return 0  # some templates refuse a conversation without a question
    shared = 0
    while shared < min(len(ids), len(alone)) and ids[shared] == alone[shared]:
        shared += 1
    return shared
