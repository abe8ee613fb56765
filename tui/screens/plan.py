"""What is where and why: memory by device, context, speeds expected and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localllm.chat.visible import visible_line
from localllm.tui.meters import bar, box_width, size

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localllm.chat.backend import ModelState
    from localllm.chat.desk import ChatDesk
    from localllm.tui.meters import Readings

WIDTH = 30  # columns of a bar
TEXT = 31  # columns around a bar
WIDE = 60  # columns from which a table has headings


class PlanScreen(ModalScreen[None]):
    """Closes with Esc."""

    BINDINGS: ClassVar = [Binding("escape,q,f3,enter", "dismiss", "close")]

    def __init__(self, desk: ChatDesk, readings: Readings) -> None:
        super().__init__()
        self._desk, self._readings = desk, readings

    def compose(self) -> ComposeResult:
        """Facts, one a line."""
        with Vertical(classes="box"), VerticalScroll():
            yield Static(Content("\n").join(self._lines()), classes="text")

    def _lines(self) -> list[Content]:
        state, readings = self._desk.backend.state(), self._readings
        width = box_width(self.app.size.width)
        columns = max(4, min(WIDTH, width - TEXT))
        found = [
            _heading(visible_line(self._desk.model, 80)),
            Content(visible_line(state.description, 300)),
            Content(""),
        ]
        found += [_heading("Memory"), *_shares("weights", state.weight_bytes, columns)]
        found += _shares("KV cache", state.kv_bytes, columns)
        context = self._desk.backend.context()
        found += [Content(""), _heading("Context")]
        if context.limit:
            held = context.kept
            found.append(
                Content.assemble(
                    (bar(held / context.limit, columns), "$text-accent"), f" {held} of {context.limit} tokens"
                )
            )
        found.append(Content(f"kept {context.kept}, of these {context.sunk} for ever, evicted {context.evicted}"))
        expected = state.predicted_tokens_per_second
        found += [Content(""), _heading("Speed")]
        found.append(Content(f"expected {expected:.1f} tok/s" if expected else "nothing was predicted"))
        found.append(Content(f"measured {readings.speed:.1f} tok/s" if readings.speed else "nothing measured yet"))
        if readings.prompt_speed:
            found.append(Content(f"reading the prompt {readings.prompt_speed:.0f} tok/s"))
        return found + _layers(state, width)


def _heading(text: str) -> Content:
    return Content.styled(text, "bold $text-primary")


def _shares(what: str, sizes: tuple[tuple[str, int], ...], columns: int) -> list[Content]:
    total = sum(count for _, count in sizes)
    return [
        Content.assemble(
            what.ljust(10),
            device.ljust(6),
            (bar(count / total, columns), "$text-accent"),
            f" {size(count)} ({count / total:.0%})",
        )
        for device, count in sizes
        if count
    ]


def _layers(state: ModelState, width: int) -> list[Content]:
    """Each layer: its bytes and, as a bar, the part that is on the GPU; then why."""
    if not state.layers:
        return []
    found = [Content(""), _heading("Layers"), *(Content(visible_line(reason, 300)) for reason in state.reasons)]
    wide = width >= WIDE
    if wide:
        found.append(Content.styled(f"{'':17}attention      KV  feed-forward", "$foreground 60%"))
    for number, layer in enumerate(state.layers):
        share = layer.gpu_bytes / max(1, layer.nbytes)
        where = "CPU" if not layer.gpu_bytes else "GPU" if share > 0.999 else f"GPU {share:.0%}"
        line = Content.assemble(f"{number:4} ", (where.ljust(8), "$text-success" if layer.gpu_bytes else ""))
        sizes = [layer.attention_bytes, layer.kv_bytes, layer.feed_forward_bytes]
        columns = [10, 10, 12] if wide else [8, 8, 8]
        line += "".join(size(count).rjust(column) for count, column in zip(sizes, columns, strict=True))
        found.append(line + Content.styled(f"  {bar(share, 12)}", "$text-accent") if share else line)
    return found + [Content(f"     {visible_line(name, 80)}, {size(count)}") for name, count in state.ends]
