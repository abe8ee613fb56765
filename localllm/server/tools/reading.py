"""Finds calls in streamed text: between markers, or in an answer that is JSON from its first letter on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from localllm.server.parts import CallPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localllm.server.parts import Found

    from .progressive import CallScanner


class MarkedReader:
    """Text up to an opening marker is text; what follows, up to `closing` (or the end), is parsed as calls.

    What cannot be parsed is given back as it was written, markers included. White space around calls is dropped.
    With a `scanner` calls are told while they are written (or, where it is not early, when they were cut); one that
    breaks off then stays as it is.
    """

    def __init__(
        self,
        opening: Sequence[str],
        closing: str | None,
        parse: Callable[[str], list[CallPart] | None],
        scanner: CallScanner | None = None,
    ) -> None:
        self._scanner = scanner if scanner is not None and scanner.early else None
        self._late = scanner
        self._seen = 0  # letters of the body that the scanner has
        self._opening = tuple(opening)
        self._closing = closing
        self._parse = parse
        self._held = ""
        self._marker: str | None = None
        self._called = False

    def push(self, text: str) -> Found:
        """What is certain now."""
        self._held += text
        found: Found = []
        while True:
            if self._marker is None and not self._seek(found):
                return found
            if self._closing is None or self._closing not in self._held:
                end = 0 if self._closing is None else _overlap(self._held, self._closing)
                self._scan(self._held[: len(self._held) - end], found)
                return found
            body, _, self._held = self._held.partition(self._closing)
            self._finish(body, self._closing, found)

    def flush(self, *, cut: bool = False) -> Found:
        """The rest: a call without its closing marker counts when it is whole; of one that was cut what is known."""
        found: Found = []
        rest, self._held = self._held, ""
        if self._marker is not None:
            self._finish(rest, "", found, cut)
        elif rest and not (self._called and rest.isspace()):
            found.append(rest)
        return found

    def _seek(self, found: Found) -> bool:
        places = [(self._held.find(marker), marker) for marker in self._opening if marker in self._held]
        if places:
            place, marker = min(places)
            before, self._held = self._held[:place], self._held[place + len(marker) :]
            self._emit(before.rstrip(), found)
            self._marker = marker
            return True
        keep = max(_overlap(self._held, marker) for marker in self._opening)
        keep += len(self._held[: len(self._held) - keep]) - len(self._held[: len(self._held) - keep].rstrip())
        self._emit(self._held[: len(self._held) - keep], found)
        self._held = self._held[len(self._held) - keep :]
        return False

    def _emit(self, text: str, found: Found) -> None:
        if self._called:
            text = text.lstrip()
        if text:
            found.append(text)

    def _finish(self, body: str, closing: str, found: Found, cut: bool = False) -> None:
        marker, self._marker = self._marker, None
        self._scan(body, found)
        self._seen = 0
        if self._scanner is not None and self._scanner.begun:
            self._called = True
            found.extend(_left(self._scanner, self._parse))
            return
        if self._scanner is not None:
            self._scanner.reset()
        calls = self._parse(body)
        if calls is None and cut:
            found.extend([] if self._late is None else self._late.push(body))
        elif calls is None:
            found.append(f"{marker}{body}{closing}")
        else:
            self._called = True
            found.extend(calls)

    def _scan(self, body: str, found: Found) -> None:
        if self._scanner is not None:
            found.extend(self._scanner.push(body[self._seen :]))
            self._seen = max(self._seen, len(body))


def _left(scanner: CallScanner, parse: Callable[[str], list[CallPart] | None]) -> Found:
    """What stands behind the calls that were told already; the scanner begins anew."""
    rest = scanner.reset()
    if scanner.is_over(rest):
        return []
    calls = parse(rest.lstrip(",; \n\t"))
    return [rest] if calls is None else list(calls)


class WholeReader:
    """An answer that begins like a call is read to its end and then parsed; any other is text from the start."""

    def __init__(
        self,
        beginnings: Sequence[str],
        parse: Callable[[str], list[CallPart] | None],
        scanner: CallScanner | None = None,
    ) -> None:
        self._scanner = scanner if scanner is not None and scanner.early else None
        self._late = scanner
        self._beginnings = tuple(beginnings)
        self._parse = parse
        self._held = ""
        self._text = False

    def push(self, text: str) -> Found:
        """The text, once it is known to be no call."""
        if self._text:
            return [text]
        self._held += text
        begun = self._held.lstrip()
        if not begun or any(begun.startswith(b) or b.startswith(begun) for b in self._beginnings):
            return [] if self._scanner is None else list(self._scanner.push(text))
        self._text = True
        held, self._held = self._held, ""
        return [held]

    def flush(self, *, cut: bool = False) -> Found:
        """The calls, or the text that was none; of a call that was cut what is known."""
        held, self._held = self._held, ""
        if self._scanner is not None and self._scanner.begun:
            return _left(self._scanner, self._parse)
        calls = self._parse(held) if held.strip() else None
        if calls is not None:
            return list(calls)
        if cut and self._late is not None and not self._text:
            self._late.reset()
            known = self._late.push(held)
            if known or not held.lstrip().startswith("{"):  # JSON may be the answer itself
                return list(known)
        return [held] if held else []


def _overlap(text: str, marker: str) -> int:
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)


def parse_json_calls(
    text: str, *, name: str = "name", arguments: Sequence[str] = ("arguments",)
) -> list[CallPart] | None:
    """One call object or a list of them; None when it is neither."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return calls_of(value, name=name, arguments=arguments)


def calls_of(value: Any, *, name: str = "name", arguments: Sequence[str] = ("arguments",)) -> list[CallPart] | None:
    """Calls of parsed JSON; None when it is something else."""
    items = value if isinstance(value, list) else [value]
    calls = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get(name), str) or not item[name]:
            return None
        given: Any = next((item[key] for key in arguments if key in item), {})
        calls.append(CallPart(item[name], given if isinstance(given, str) else compact(given)))
    return calls or None


def compact(value: Any) -> str:
    """JSON text as clients of OpenAI get it."""
    return json.dumps(value, ensure_ascii=False)
