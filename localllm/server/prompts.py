"""Prompts of plain completions and inputs of embeddings: a text, token ids, or a list of either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import APIError, bad_request

if TYPE_CHECKING:
    from localllm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text and its ids."""

    text: str
    ids: list[int]


def read_prompts(given: object, tokenizer: Tokenizer, vocabulary_size: int, parameter: str = "prompt") -> list[Prompt]:
    """All prompts in order. APIError 400 for other forms, empty ones and ids that do not exist."""
    if isinstance(given, str):
        return [_of_text(given, tokenizer, parameter)]
    if not isinstance(given, list) or not given:
        raise _wrong(parameter)
    if all(_is_id(item) for item in given):
        return [_of_ids(given, tokenizer, vocabulary_size, parameter)]
    prompts = []
    for index, item in enumerate(given):
        where = f"{parameter}[{index}]"
        if isinstance(item, str):
            prompts.append(_of_text(item, tokenizer, where))
        elif isinstance(item, list) and item and all(_is_id(token) for token in item):
            prompts.append(_of_ids(item, tokenizer, vocabulary_size, where))
        else:
            raise _wrong(where)
    return prompts


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(where: str) -> APIError:
    message = f"{where} must be a text, a list of token ids, or a list of such, and not empty"
    return bad_request(message, where, "invalid_value")


def _of_text(text: str, tokenizer: Tokenizer, where: str) -> Prompt:
    ids = tokenizer.encode_prompt(text)
    if not ids:
        raise bad_request(f"{where} is empty", where, "invalid_value")
    return Prompt(text, ids)


def _of_ids(ids: list[int], tokenizer: Tokenizer, vocabulary_size: int, where: str) -> Prompt:
    wrong = next((token for token in ids if not 0 <= token < vocabulary_size), None)
    if wrong is not None:
        message = f"{where}: token ids go from 0 to {vocabulary_size - 1}, not {wrong}"
        raise bad_request(message, where, "invalid_value")
    return Prompt(tokenizer.decode(ids), ids)
