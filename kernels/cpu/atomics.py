"""Atomic int64 operations, sequentially consistent, and the pause of a spin loop."""

from __future__ import annotations

from .emit import Emitter
from .ir_types import I32, I64, VOID, Offset, Value
from .isa import PORTABLE_ARM


def atomic_add(e: Emitter, value: Offset, address: Value, *offsets: Offset) -> Value:
    """Add to an int64 in memory; returns what it was before."""
    return e.builder.atomic_rmw("add", e.at(address, *offsets), e.integer(value), "seq_cst")


def atomic_load(e: Emitter, address: Value, *offsets: Offset) -> Value:
    """Load an int64."""
    return e.builder.load_atomic(e.at(address, *offsets), "seq_cst", 8, typ=I64)


def atomic_store(e: Emitter, value: Offset, address: Value, *offsets: Offset) -> None:
    """Store an int64 (as an exchange: llvmlite's atomic store does not know opaque pointers)."""
    e.builder.atomic_rmw("xchg", e.at(address, *offsets), e.integer(value), "seq_cst")


def pause(e: Emitter) -> None:
    """Tell the core that this is a spin loop."""
    if e.isa.x86:
        e.call("llvm.x86.sse2.pause", VOID)
    elif e.isa == PORTABLE_ARM:
        e.call("llvm.aarch64.hint", VOID, e.constant(I32, 1))
