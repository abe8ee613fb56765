"""Pastes are text, wherever the stream of a terminal is cut."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser

from localllm.tui.terminal_input import PasteFilter

START, END = "\x1b[200~", "\x1b[201~"
PIECES = st.sampled_from(["\x1b", "[", "2", "0", "1", "~", "a", "\n", "\x1b[A", "\x1b[31m", "\x03", START, "\x1b[20"])
PASTES = st.lists(PIECES, min_size=1, max_size=12).map("".join)


def parsed(chunks: list[str]) -> list[str]:
    parser, pastes = XTermParser(), PasteFilter()
    seen = []
    for chunk in chunks:
        text = pastes.push(chunk)
        for event in parser.feed(text) if text else ():
            assert isinstance(event, (events.Paste, events.Key))
            seen.append(f"paste {event.text}" if isinstance(event, events.Paste) else event.key)
    return seen


@given(PASTES.filter(lambda text: END not in text + END[:-1]), st.data())
@example("abc \x1b[31mred\x1b[0m [@click=app.quit]q[/] tail\ntwo", None)
def test_a_paste_is_one_text(pasted: str, data: st.DataObject | None) -> None:
    stream = f"x\x1b[A{START}{pasted}{END}\x1b[By"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6)) if data is not None else []
    places = [0, *sorted(cuts), len(stream)]
    chunks = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    assert parsed(chunks) == ["x", "up", "paste " + pasted.replace("\x1b", "␛"), "down", "y"]


@given(st.text(alphabet="\x1b[20~1Ab", max_size=20).filter(lambda text: START not in text), st.data())
def test_what_is_typed_is_passed_on_at_once(typed: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(typed)))
    pastes = PasteFilter()
    assert pastes.push(typed[:cut]) == typed[:cut]
    assert pastes.push(typed[cut:]) == typed[cut:]
