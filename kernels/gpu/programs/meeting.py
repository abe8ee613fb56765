"""Where a step meets the CPU: rows into page-locked memory and a flag behind them, and waiting for the CPU's flag.

Flags are int64 in memory of the host; a flag is raised by storing the step's number. Loads and stores of flags have the
scope of the system (PTX ISA, memory consistency model): what was written before a flag is seen by who has seen it.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

LONG = tl.constexpr(1_000_000)  # nanoseconds


@triton.jit
def _raise(flag, number):
    """Store a flag after everything that the program has written."""
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        "fence.acq_rel.sys; st.relaxed.sys.global.b64 [$1], $2; mov.u32 $0, 0;",
        "=r,l,l",
        [flag.to(tl.int64), number],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _look(flag):
    """Load a flag as it is now."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.sys.global.b64 $0, [$1];", "=l,l", [flag.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def raise_flag(flag, number, stamp):
    """Raise a flag: what earlier kernels wrote is there."""
    _raise(flag, tl.load(number))
    tl.store(stamp, globaltimer())


@triton.jit
def copy_row(source, target, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """COUNT float32 values, in pieces of BLOCK; those of the host are read as they are now."""
    i = tl.arange(0, BLOCK)
    for start in tl.static_range(0, COUNT, BLOCK):
        ok = start + i < COUNT
        tl.store(target + start + i, tl.load(source + start + i, mask=ok, other=0.0, volatile=True), mask=ok)


@triton.jit
def send_rows(
    residual, x, gates, out_gates, flag, number, stamp, M, K: tl.constexpr, GATES: tl.constexpr,
    GATE_STEP: tl.constexpr, BLOCK: tl.constexpr,
):
    """Copy M rows of K values (and GATES of each row of gates) to the host's memory, then raise the flag."""
    for m in range(M):
        copy_row(residual + m * K, x + m * K, K, BLOCK)
        if GATES:
            copy_row(gates + m * GATE_STEP, out_gates + m * GATE_STEP, GATES, BLOCK)
    _raise(flag, tl.load(number))
    tl.store(stamp, globaltimer())


@triton.jit
def send(
    residual, x, gates, out_gates, flag, number, stamp, M, K: tl.constexpr, GATES: tl.constexpr,
    GATE_STEP: tl.constexpr, BLOCK: tl.constexpr,
):
    """`send_rows` as a kernel of one program."""
    send_rows(residual, x, gates, out_gates, flag, number, stamp, M, K, GATES, GATE_STEP, BLOCK)


@triton.jit
def meet(flag, failed, number, mark, patience, stamp):
    """Wait until the flag is raised, a half has failed, or `patience` nanoseconds are over: then this one has.

    What is loaded afterwards is what the other half wrote. Warps may leave in different ways, so none waits for another
    before all have.
    """
    wanted = tl.load(number)
    began = globaltimer()
    late = False
    seen = _look(flag)
    while (seen != wanted) & (late == False):  # noqa: E712 (a tensor)
        passed = globaltimer() - began
        if passed > LONG:  # every look crosses the link, so the other one waits until something seems wrong
            late = (_look(failed) != 0) | (passed > patience)
        seen = _look(flag)
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s64 p, $2, $3; @p st.relaxed.sys.global.b64 [$1], $4;"
        " fence.acq_rel.sys; mov.u32 $0, 0; }",
        "=r,l,l,l,l",
        [failed.to(tl.int64), seen, wanted, mark.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()
    tl.store(stamp, globaltimer())


@triton.jit(do_not_specialize=["mark"])
def wait(flag, failed, number, mark, patience, stamp):
    """`meet`, for the kernels that follow."""
    meet(flag, failed, number, mark, patience, stamp)


@triton.jit
def divide_choice(chosen, shares, table, out_chosen, out_shares, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Tell the CPU which experts were chosen, then keep those that are here: other numbers, -1 and a share of 0."""
    for start in tl.static_range(0, COUNT, BLOCK):
        i = start + tl.arange(0, BLOCK)
        ok = i < COUNT
        expert = tl.load(chosen + i, mask=ok, other=0)
        share = tl.load(shares + i, mask=ok, other=0.0)
        tl.store(out_chosen + i, expert.to(tl.int64), mask=ok)
        tl.store(out_shares + i, share, mask=ok)
        own = tl.load(table + expert, mask=ok, other=-1)
        tl.debug_barrier()  # threads may hold copies of an element: all must have read it before one writes
        tl.store(chosen + i, own, mask=ok)
        tl.store(shares + i, tl.where(own < 0, 0.0, share), mask=ok)
