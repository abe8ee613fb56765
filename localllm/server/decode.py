"""From a JSON object to a typed request: unknown and unsupported fields are told, harmless ones noted."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from .errors import APIError, bad_request

R = TypeVar("R", bound=msgspec.Struct)

# Sent by OpenAI clients; leaving them out changes nothing about the answer.
HARMLESS = {
    "user": "requests are not kept by user",
    "metadata": "requests are not stored",
    "store": "requests are not stored",
    "service_tier": "there is one tier",
    "safety_identifier": "requests are not kept by user",
    "prompt_cache_key": "equal prefixes are always shared",
    "prompt_cache_retention": "equal prefixes are shared while there is room",
    "prediction": "guessing ahead is the server's choice",
    "verbosity": "models here have no such setting",
}

# Known, but an answer without them would not be what was asked for.
UNSUPPORTED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "models here write text only",
    "modalities": "models here write text only",
    "web_search_options": "this server opens no connections",
    "moderation": "this server judges no content",
    "suffix": "models here continue text; none fills gaps",
    "use_beam_search": "answers are sampled",
    "previous_response_id": "this server keeps no conversations; send all of it as input",
    "conversation": "this server keeps no conversations; send all of it as input",
    "background": "this server keeps no answers",
    "prompt_template": "this server keeps no prompts",
    "max_tool_calls": "there are no built-in tools",
    "dimensions": "vectors have the model's own size",
}


def decode(body: dict[str, Any], kind: type[R]) -> tuple[R, list[str]]:
    """The request and its warnings. APIError 400 names the field that is wrong."""
    known = set(kind.__struct_fields__)
    warnings: list[str] = []
    kept = dict(body)
    for name in body:
        if name in known:
            continue
        if name in HARMLESS:
            del kept[name]
            if body[name] is not None:
                warnings.append(f"{name} was ignored: {HARMLESS[name]}")
        elif name in UNSUPPORTED:
            if not _says_nothing(name, body[name]):
                raise bad_request(f"{name} is not supported: {UNSUPPORTED[name]}", name, "unsupported_parameter")
            del kept[name]
        else:
            raise _unknown(name, known)
    try:
        return msgspec.convert(kept, kind), warnings
    except msgspec.ValidationError as error:
        raise _explained(error, body) from None
    except UnicodeEncodeError:
        message = "a name in the body holds half a character (a lone surrogate)"
        raise bad_request(message, None, "invalid_value") from None


def _says_nothing(name: str, value: Any) -> bool:
    return value is None or (name == "modalities" and value == ["text"]) or (name == "background" and value is False)


def _unknown(name: str, known: set[str]) -> APIError:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return bad_request(f"there is no parameter {name[:80]!r}{hint}", name[:80], "unknown_parameter")


def _explained(error: msgspec.ValidationError, body: dict[str, Any]) -> APIError:
    what, _, where = str(error).partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".") or None
    missing = re.search(r"missing required field `(\w+)`", what)
    unknown = re.search(r"unknown field `(.*)`", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return bad_request(f"{path} is missing", path, "missing_required_parameter")
    if unknown:
        name = unknown[1][:80]
        path = f"{path}.{name}" if path else name
        return bad_request(f"there is no parameter {path}", path, "unknown_parameter")
    if what.startswith("Invalid value") and path and path.endswith("].type") and ".content[" in path:
        return bad_request(f"{path}: this model reads text only, not {what[14:74]}", path, "unsupported_content")
    plain = what[:1].lower() + what[1:200]
    plain = plain.replace("`", "").replace(" | null", "").replace("array", "list").replace("str ", "string ")
    return bad_request(f"{path or 'the body'}: {plain}", path, "invalid_value")
