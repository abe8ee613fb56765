"""When each half worked in the last step, as a timeline that Chrome and Perfetto open.

Both halves leave two times a layer, each of its own clock. The clocks are laid over each other by what both
see: the CPU's wait ends when the device raises its flag. So the first and the last split layer give offset and rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    Times = npt.NDArray[np.int64]

MET, DONE = 0, 1  # a wait has ended; the own flag is raised


def timeline(device: Times, cpu: Times, layers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Events of the trace event format (https://ui.perfetto.dev): `device` and `cpu` int64 [layers, 2] times.

    `layers` are those that are split, at least one; `seconds` is what the whole step took, which scales the device's
    clock if it does not count nanoseconds.
    """
    first, last = layers[0], layers[-1]
    span = float(device[last, MET] - device[first, DONE]) or 1.0
    unit = 1e-3 if span * 1e-9 <= seconds * 1.05 else seconds * 1e6 / span
    rate = float(device[last, DONE] - device[first, DONE]) / (float(cpu[last, MET] - cpu[first, MET]) or 1.0)

    def on_device(time: int) -> float:
        return float(time - device[first, DONE]) * unit

    def on_cpu(time: int) -> float:
        return float(time - cpu[first, MET]) * (rate or 1.0) * unit

    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
        for thread, name in ((1, "device"), (2, "CPU"))
    ]

    def add(name: str, thread: int, start: float, stop: float) -> None:
        events.append({"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": max(0.0, stop - start)})

    before: int | None = None
    for layer in layers:
        if before is not None:
            add(f"layer {layer}: attention", 1, on_device(device[before, MET]), on_device(device[layer, DONE]))
        add(f"layer {layer}: hot half, then waiting", 1, on_device(device[layer, DONE]), on_device(device[layer, MET]))
        add(f"layer {layer}: cold half", 2, on_cpu(cpu[layer, MET]), on_cpu(cpu[layer, DONE]))
        before = layer
    return events
