"""The card's side of the memory in which it meets the CPU (see `kernels/hybrid/exchange.py`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from .programs import meeting as programs
from .vector_products import Beside

if TYPE_CHECKING:
    from localllm.kernels.hybrid.exchange import Exchange

    from .device import Gpu

FEW_ROWS = 4  # copied by one program, and read by kernels where they are
_BLOCK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """Raises the card's flags and waits for the CPU's. `memory` is the exchange's, page-locked."""

    gpu: Gpu
    exchange: Exchange
    memory: torch.Tensor
    patience: float  # seconds

    def floats(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """The rows "x", "y" or "gate"."""
        return self._part(name).view(torch.float32)[: rows * columns].view(rows, columns)

    def send(
        self,
        layer: int,
        number: torch.Tensor,
        residual: torch.Tensor,
        rows: int,
        gates: torch.Tensor | None,
        first: int,
    ) -> None:
        """Rows of the residual, and of `gates` the columns from `first` on, to the CPU; then the flag."""
        width = residual.shape[1]
        x, out = self.floats("x", rows, width), self.gpu.nothing
        if gates is not None:
            out = self.floats("gate", rows, gates.shape[1])
        if self.gpu.interpreted or rows > FEW_ROWS:
            x.copy_(residual[:rows], non_blocking=True)
            if gates is not None:
                out.copy_(gates[:rows], non_blocking=True)
        flag, stamp = self._flag("device", layer), self._stamp(layer, 1)
        if self.gpu.interpreted:
            flag.copy_(number)
            stamp.fill_(time.perf_counter_ns())
            return
        if rows > FEW_ROWS:
            programs.raise_flag[(1,)](flag, number, stamp, **self.gpu.options(1))
            return
        nothing = self.gpu.nothing
        programs.send[(1,)](
            residual,
            x,
            nothing if gates is None else gates[:, first:],
            out if gates is None else out[:, first:],
            flag,
            number,
            stamp,
            rows,
            K=width,
            GATES=0 if gates is None else gates.shape[1] - first,
            GATE_STEP=0 if gates is None else gates.shape[1],
            BLOCK=_BLOCK if gates is None else 4 * _BLOCK,
            **self.gpu.options(8 if gates is None else 16),
        )

    def sending(
        self,
        layer: int,
        number: torch.Tensor,
        residual: torch.Tensor,
        rows: int,
        gates: torch.Tensor | None,
        first: int,
    ) -> Beside:
        """`send` as what a program does beside others."""
        width, nothing, sizes = residual.shape[1], self.gpu.nothing, (0, 0)
        own, out = nothing, nothing
        if gates is not None:
            own, out = gates[:, first:], self.floats("gate", rows, gates.shape[1])[:, first:]
            sizes = gates.shape[1] - first, gates.shape[1]
        x, flag = self.floats("x", rows, width), self._flag("device", layer)
        return Beside(
            True, rows, width, residual, x, own, out, *sizes, flag, nothing, number, self._stamp(layer, 1), 0, 0
        )

    def receiving(self, layer: int, number: torch.Tensor, rows: int, out: torch.Tensor) -> Beside:
        """`receive`, to `out`, as what a program does beside others."""
        width, nothing, patience = self.exchange.sizes.hidden, self.gpu.nothing, int(self.patience * 1e9)
        y, flag, stamp = self.floats("y", rows, width), self._flag("cpu", layer), self._stamp(layer, 0)
        unused = nothing, nothing, 0, 0
        return Beside(False, rows, width, y, out, *unused, flag, self._failed, number, stamp, layer + 1, patience)

    def divide(self, chosen: torch.Tensor, shares: torch.Tensor, table: torch.Tensor, count: int) -> None:
        """The first `count` chosen experts and their shares to the CPU; what stays is in numbers of this half."""
        programs.divide_choice[(1,)](
            chosen,
            shares,
            table,
            self._part("chosen").view(torch.int64),
            self._part("shares").view(torch.float32),
            COUNT=count,
            BLOCK=min(_BLOCK, triton.next_power_of_2(count)),
            **self.gpu.options(4),
        )

    def receive(
        self, layer: int, number: torch.Tensor, rows: int, out: torch.Tensor, *, copy: bool = False
    ) -> torch.Tensor:
        """Wait for the CPU's sum of a layer; returns where it is: in the host's memory, or copied to `out`."""
        flag, failed, stamp = self._flag("cpu", layer), self._failed, self._stamp(layer, 0)
        y = self.floats("y", rows, self.exchange.sizes.hidden)
        if self.gpu.interpreted:
            self._wait_here(flag, failed, number, layer)
            stamp.fill_(time.perf_counter_ns())
        else:
            programs.wait[(1,)](flag, failed, number, layer + 1, int(self.patience * 1e9), stamp, **self.gpu.options(1))
        if rows <= FEW_ROWS and not copy and not self.gpu.interpreted:
            return y
        found = out[: y.numel()].view(y.shape)
        found.copy_(y, non_blocking=True)
        return found

    def _wait_here(self, flag: torch.Tensor, failed: torch.Tensor, number: torch.Tensor, layer: int) -> None:
        """What the program does, without a card."""
        wanted, end = int(number[0]), time.monotonic() + self.patience
        while int(flag[0]) != wanted:
            if int(failed[0]) or time.monotonic() > end:
                failed.fill_(layer + 1)
                return
            time.sleep(0)

    def _flag(self, side: str, layer: int) -> torch.Tensor:
        return self._part(f"{side} flags").view(torch.int64)[8 * layer : 8 * layer + 1]

    def _stamp(self, layer: int, index: int) -> torch.Tensor:
        return self._part("device times").view(torch.int64)[2 * layer + index : 2 * layer + index + 1]

    @property
    def _failed(self) -> torch.Tensor:
        return self._part("failed").view(torch.int64)[:1]

    def _part(self, name: str) -> torch.Tensor:
        start = self.exchange.offsets[name]
        return self.memory[start : start + self.exchange.sizes.parts[name]]
