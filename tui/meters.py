"""What the meters show, as text for any width: speed, context, memory. Pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.content import Content

from localllm.chat.backend import ContextState, ModelState
from localllm.chat.visible import visible_line

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR = 12  # columns of the context bar
NARROW = 64  # columns; below that the meters say less
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(slots=True)
class Readings:
    """Everything that the meters know at a moment. Speeds are tokens per second, `phase` is what is going on."""

    model: str = ""
    phase: str = "ready"
    fraction: float | None = None
    prompt_total: int = 0
    prompt_done: int = 0
    speed: float = 0.0
    prompt_speed: float = 0.0
    tokens: int = 0
    guesses: int = 0
    right: int = 0  # guesses of the last answer that were
    context: ContextState = field(default_factory=ContextState)
    state: ModelState = field(default_factory=ModelState)


def lines(readings: Readings, width: int, height: int) -> Content:
    """One line for low screens, else two; the most important parts first, none cut in the middle."""
    first = [
        _phase(readings),
        *_speed(readings, width),
        *_context(readings, width),
        *_prompt_speed(readings),
        *_guesses(readings),
    ]
    second = [_model(readings), *_memory(readings)]
    if height < 2:
        return _fit(first, width)
    return Content("\n").join([_fit(first, width), _fit(second, width)])


def bar(fraction: float, columns: int) -> str:
    """A bar in eighths of a column."""
    filled = max(0.0, min(1.0, fraction)) * columns
    whole = int(filled)
    rest = EIGHTHS[int((filled - whole) * 8)] if whole < columns else ""
    return ("█" * whole + rest).ljust(columns)[:columns].replace(" ", "░")


def box_width(screen: int) -> int:
    """Columns for text inside the box of a dialogue, its scroll bar left out; as app.tcss has it."""
    return min(int(screen * 0.9), 100) - 6


def size(count: int) -> str:
    """Bytes for people."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


def _fit(parts: Sequence[Content], width: int) -> Content:
    found, used = Content(""), 0
    for part in parts:
        gap = 3 if used else 1
        if used + gap + part.cell_length > width and used:
            continue
        found = found + Content.styled(" │ " if used else " ", "$foreground 30%") + part
        used += gap + part.cell_length
    return found.truncate(width, ellipsis=True)


def _phase(readings: Readings) -> Content:
    if readings.phase == "ready":
        return Content.styled("● ready", "$text-success")
    text = f"● {readings.phase}"
    if readings.fraction is not None:
        text += f" {bar(readings.fraction, 8)} {readings.fraction:.0%}"
    elif readings.phase == "reading" and readings.prompt_total:
        share = readings.prompt_done / readings.prompt_total
        text += f" {bar(share, 8)} {readings.prompt_done}/{readings.prompt_total}"
    return Content.styled(text, "$text-warning")


def _speed(readings: Readings, width: int) -> list[Content]:
    found = []
    if readings.speed:
        expected = readings.state.predicted_tokens_per_second
        beside = f" (expected {expected:.0f})" if expected and width >= NARROW else ""
        found.append(Content.assemble((f"{readings.speed:.1f} tok/s", "bold"), (beside, "$foreground 60%")))
    elif readings.state.predicted_tokens_per_second:
        found.append(
            Content.styled(f"expected {readings.state.predicted_tokens_per_second:.0f} tok/s", "$foreground 60%")
        )
    return found


def _guesses(readings: Readings) -> list[Content]:
    return [Content(f"{readings.right} of {readings.guesses} guesses right")] if readings.guesses else []


def _prompt_speed(readings: Readings) -> list[Content]:
    return [Content(f"prompt {readings.prompt_speed:.0f} tok/s")] if readings.prompt_speed else []


def _context(readings: Readings, width: int) -> list[Content]:
    context = readings.context
    limit, held = context.limit, context.kept
    if limit is None:
        return [Content(f"context {held}")] if held else []
    colour = "$text-error" if held > 0.95 * limit else "$text-warning" if held > 0.75 * limit else "$text-accent"
    drawn = (bar(held / limit, BAR if width >= NARROW else 4), colour)
    found = [Content.assemble("context " if width >= NARROW else "", drawn, f" {held}/{limit}")]
    if context.evicted:
        sunk = f"sunk {context.sunk}, " if context.sunk and width >= NARROW else ""
        found.append(Content.assemble(sunk, (f"evicted {context.evicted}", "$text-warning")))
    return found


def _model(readings: Readings) -> Content:
    return Content.styled(visible_line(readings.model, 60), "bold")


def _memory(readings: Readings) -> list[Content]:
    state = readings.state
    weights, kv = dict(state.weight_bytes), dict(state.kv_bytes)
    total = sum(weights.values())
    if not total:
        return [Content(visible_line(state.description, 200))] if state.description else []
    found = [Content(f"model {size(total)}"), Content(f"KV {size(sum(kv.values()))}")]
    used = {device: count for device, count in weights.items() if count}
    if len(used) > 1:
        shares = ", ".join(f"{count / total:.0%} {device}" for device, count in used.items())
        found.append(Content(shares))
    else:
        found.append(Content(f"all on {next(iter(used))}"))
    found.append(Content.styled(visible_line(state.description, 200), "$foreground 60%"))
    return found
