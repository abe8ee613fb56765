"""The transcript: one widget that draws only the rows that are in view, however long the chat is."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

if TYPE_CHECKING:
    from textual import events
    from textual.selection import Selection
    from textual.timer import Timer

    from localllm.tui.markdown import Row

    from .turn import Turn

GUTTER = 2  # columns at the left for the bar of the picked turn
WIDEST = 120  # columns of text; longer lines are hard to read
COLOURS = 10.0  # a second: slices of a long block of code that is not coloured yet
STYLES = (
    *("strong", "em", "strike", "link", "address", "h1", "h2", "h3", "rule", "quote", "bullet"),
    *("code", "code-inline", "code-header", "code-comment", "code-keyword", "code-string", "code-number"),
    *("code-function", "code-builtin", "code-error", "button", "name", "you", "dim", "thinking", "error", "picked"),
)


class Transcript(ScrollView, can_focus=True):
    """Turns below each other. It stays at its end while text comes, unless the reader has scrolled away."""

    FOCUS_ON_CLICK = False
    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in STYLES}
    BINDINGS: ClassVar = [
        Binding("up,k", "pick(-1)", "previous turn"),
        Binding("down,j", "pick(1)", "next turn"),
        Binding("c", "act('copy')", "copy"),
        Binding("e", "act('edit')", "edit"),
        Binding("r", "act('retry')", "retry"),
        Binding("g", "act('continue')", "go on"),
        Binding("t", "act('thinking')", "thinking"),
        Binding("left", "act('branch -1')", "version"),
        Binding("right", "act('branch 1')", "version", show=False),
        Binding("enter", "act('unfold')", "unfold", show=False),
    ]

    @dataclass
    class Action(Message):
        """The reader wants something done with a turn: copy, edit, retry, continue, branch ±1, copy-code N."""

        message: int
        action: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._turns: list[Turn] = []
        self._ends: list[int] = []
        self._laid_out = 8  # columns that `_ends` was made for
        self._follow = True
        self._styles: dict[str, Style] = {}
        self._colours: Timer | None = None

    def on_mount(self) -> None:
        """Colours of long blocks of code come after their text."""
        self._colours = self.set_interval(1 / COLOURS, self._colour_more, pause=True)

    # ---- content

    @property
    def turns(self) -> list[Turn]:
        """The turns, first to last."""
        return self._turns

    @property
    def at_end(self) -> bool:
        """Whether new text scrolls the transcript."""
        return self._follow

    @property
    def picked(self) -> Turn | None:
        """The turn that keys act on."""
        return next((turn for turn in self._turns if turn.picked), None)

    def show(self, turns: list[Turn]) -> None:
        """Replace everything and go to the end."""
        self._turns = turns
        self._follow = True
        self.changed()

    def add(self, turn: Turn) -> None:
        """A turn at the end."""
        self._turns.append(turn)
        self.changed()

    def changed(self) -> None:
        """Turns have grown, shrunk or look different."""
        self._laid_out = max(8, min(self.size.width - GUTTER - 2, WIDEST))
        self._ends = list(accumulate(len(turn.rows(self._laid_out)) for turn in self._turns))
        self.virtual_size = Size(self.size.width, self._ends[-1] if self._ends else 0)
        if self._follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self.refresh()
        if self._colours is not None and any(turn.uncoloured for turn in self._turns):
            self._colours.resume()

    def _colour_more(self) -> None:
        """One turn at a time, from the end, which is mostly what is in view."""
        turn = next((turn for turn in reversed(self._turns) if turn.uncoloured), None)
        if turn is not None:
            turn.version += 1
            self.changed()
        elif self._colours is not None:
            self._colours.pause()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end again once it is reached, and not while somebody reads above it."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self._follow = True
        elif new_value < old_value:
            self._follow = False

    def on_resize(self, event: events.Resize) -> None:
        """Lay everything out for the new width; what was read stays in view."""
        anchor = self._turn_at(self.scroll_offset.y)
        self.changed()
        if not self._follow and anchor is not None:
            self.scroll_to(y=self._start_of(anchor), animate=False, immediate=True)

    # ---- picking and acting

    def pick(self, turn: Turn | None) -> None:
        """Mark the turn that keys act on, and bring it into view."""
        for other in self._turns:
            other.picked = other is turn
        self.changed()
        if turn is not None:
            top = self._start_of(self._turns.index(turn))
            bottom = self._ends[self._turns.index(turn)]
            if top < self.scroll_offset.y or bottom - top >= self.size.height:
                self._follow = False
                self.scroll_to(y=top, animate=False, immediate=True)
            elif bottom > self.scroll_offset.y + self.size.height:
                self.scroll_to(y=bottom - self.size.height, animate=False, immediate=True)

    def action_pick(self, step: int) -> None:
        """Pick the turn above or below."""
        if self._turns:
            present = self.picked
            last = len(self._turns) - 1
            index = last + 1 if present is None else self._turns.index(present)
            self.pick(self._turns[max(0, min(last, index + step))])

    def action_act(self, action: str) -> None:
        """Do something with the picked turn, or with the last one."""
        turn = self.picked or (self._turns[-1] if self._turns else None)
        if turn is not None:
            self._act(turn, action)

    def _act(self, turn: Turn, action: str) -> None:
        if action == "thinking":
            turn.thinking_shown = not turn.thinking_shown
        elif action == "unfold":
            turn.unfolded = not turn.unfolded
        else:
            self.post_message(self.Action(turn.message, action))
            return
        turn.version += 1
        follow, self._follow = self._follow, False
        self.changed()
        self._follow = follow

    def on_click(self, event: events.Click) -> None:
        """Buttons inside rows; a click elsewhere picks the turn."""
        if self.text_selection is not None:
            return
        index = self._turn_at(event.y + self.scroll_offset.y)
        if index is None:
            return
        turn = self._turns[index]
        row = turn.rows(self._laid_out)[event.y + self.scroll_offset.y - self._start_of(index)]
        column = event.x - GUTTER
        for start, end, action in row.actions:
            if cell_len(row.text[:start]) <= column < cell_len(row.text[:end]):
                self._act(turn, action)
                return
        self.pick(None if turn.picked else turn)

    # ---- drawing

    def notify_style_update(self) -> None:
        """A theme was changed."""
        super().notify_style_update()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        """One line of what is in view."""
        line = y + self.scroll_offset.y
        width = self.size.width
        base = self.rich_style
        index = self._turn_at(line)
        if index is None:
            return Strip.blank(width, base)
        turn = self._turns[index]
        row = turn.rows(self._laid_out)[line - self._start_of(index)]
        last = line == self._ends[index] - 1
        bar = "▌ " if turn.picked and not last else "  "
        segments = [Segment(bar, base + self._style("picked"))]
        segments += self._segments(row, base, line)
        return Strip(segments).extend_cell_length(width, base).crop(0, width).apply_offsets(0, line)

    def _segments(self, row: Row, base: Style, line: int) -> list[Segment]:
        fill = base + self._style(row.fill) if row.fill else base
        spans = [(start, end, self._style(name)) for start, end, name in row.spans]
        selection = self.text_selection
        if selection is not None and (chosen := selection.get_span(line)) is not None:
            start, end = chosen
            end = len(row.text) if end == -1 else end - GUTTER
            style = self.screen.get_component_rich_style("screen--selection")
            spans.append((max(0, start - GUTTER), end, style))
        segments = [Segment(text, style) for text, style in _runs(row.text, spans, fill)]
        if row.fill:
            missing = self._laid_out - cell_len(row.text)
            if missing > 0:
                segments.append(Segment(" " * missing, fill))
        return segments

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            component = f"transcript--{name}"
            style = self.get_component_rich_style(component, partial=True)
            if style.color is not None:  # a partial style does not know what a see-through colour lies on
                style += Style(color=self.get_component_rich_style(component).color)
            self._styles[name] = style
        return style

    # ---- selection

    def selection_updated(self, selection: Selection | None) -> None:
        """The reader selects with the mouse."""
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it was written: wrapped lines joined, layout left out."""
        parts: list[str] = []
        first = selection.start.y if selection.start is not None else 0
        final = selection.end.y if selection.end is not None else (self._ends[-1] - 1 if self._ends else 0)
        for line in range(max(0, first), final + 1):
            index, chosen = self._turn_at(line), selection.get_span(line)
            if index is None or chosen is None:
                continue
            row = self._turns[index].rows(self._laid_out)[line - self._start_of(index)]
            start, end = chosen
            end = len(row.text) if end == -1 else end - GUTTER
            parts.append(row.text[max(start - GUTTER, row.margin) : max(end, 0)])
            parts.append("\n" if row.joined is None else row.joined)
        return "".join(parts[:-1]), "\n"

    def _turn_at(self, line: int) -> int | None:
        index = bisect_right(self._ends, line)
        return index if index < len(self._turns) else None

    def _start_of(self, index: int) -> int:
        return self._ends[index - 1] if index else 0


def _runs(text: str, spans: list[tuple[int, int, Style]], base: Style) -> list[tuple[str, Style]]:
    """Pieces of a text with the sum of the styles that cover them."""
    if not spans:
        return [(text, base)]
    edges = sorted({0, len(text), *(min(len(text), edge) for start, end, _ in spans for edge in (start, end))})
    found = []
    for start, end in pairwise(edges):
        style = base
        for first, last, added in spans:
            if first <= start and last >= end:
                style += added
        found.append((text[start:end], style))
    return found
