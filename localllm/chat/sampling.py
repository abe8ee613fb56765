"""How a chat samples when nobody says otherwise, and how a person changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAT_SAMPLING: Mapping[str, Any] = {"temperature": 0.7, "min_p": 0.05}

# what a person may change in a chat: name -> how its text is read
EDITABLE: Mapping[str, type[int] | type[float] | type[str]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "dry_multiplier": float,
    "xtc_probability": float,
    "xtc_threshold": float,
    "max_tokens": int,
    "seed": int,
    "stop": str,
}


def effective(advised: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of an answer: a chat's defaults, what the model's authors advise, the conversation's own values."""
    return {**CHAT_SAMPLING, **advised, **own}


def changed(sampling: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """`sampling` with one value set from what a person typed; an empty text takes the value out.

    Raises RequestError that names the parameter and what it may be.
    """
    name = name.strip().lower().replace("-", "_")
    if name not in EDITABLE:
        import difflib

        near = difflib.get_close_matches(name, EDITABLE, 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EDITABLE)}"
        raise RequestError(f"there is no sampling parameter {name[:40]!r}", hint=hint, parameter="sampling")
    rest = {key: value for key, value in sampling.items() if key != name}
    if not text.strip():
        return rest
    rest[name] = _read(name, text)
    from localllm.sampling import parameters_of

    parameters_of(rest)
    return rest


def _read(name: str, text: str) -> Any:
    kind = EDITABLE[name]
    if kind is str:
        return [text]
    try:
        return kind(text.strip())
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise RequestError(f"{name} must be {wanted}, not {text.strip()[:40]!r}", parameter=name) from None
