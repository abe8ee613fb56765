"""The step as each thread runs it: walk the operation table, meet at barriers, spin a while, then park.

All of it is machine code without the GIL: a worker thread enters once and returns only when it is told to stop; the
owner enters once a step. Parking uses CPython's own locks by address (`PyThread_acquire_lock` needs no GIL and blocks
in the operating system on every platform), so an idle process uses no CPU and nothing is specific to one system.

A wake-up cannot get lost: a worker marks itself parked and then looks at the go word once more; the owner writes the go
word and then looks at the mark; both orders are sequentially consistent, so at least one of them sees the other, and
whoever takes the mark away (an atomic exchange) decides whether the lock is released.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .atomics import atomic_add, atomic_load, atomic_store, pause
from .emit import Emitter
from .ir_types import I32, I64, VOID, Type, Value
from .step_state import GO_THREAD_BITS, LINE, PROFILE_KINDS, Word

RECORD_WORDS = 32
CLAIM_FIELD = RECORD_WORDS - 3  # how many shares of the operation threads have taken in this step
KIND_FIELD = RECORD_WORDS - 2  # which line of the profile
BARRIER_FIELD = RECORD_WORDS - 1  # 1: all threads meet after this operation
_SPINS_PER_YIELD = (
    256  # measured beside a busy neighbour: rarer yields stall a step, more frequent ones cost a quiet one
)


def word(e: Emitter, step: Value, index: int) -> Value:
    """A word of the step's state."""
    return e.field(step, int(index))


def emit_worker(e: Emitter, _: Value, step: Value, thread: Value) -> None:
    """The whole life of a worker: wait for the go word to change, run a step if it takes part, until STOP is set."""
    builder = e.builder
    own = e.at(step, e.mul(thread, 8 * LINE), 8 * Word.PARKED)
    head, changed, run, idle, leave = (builder.append_basic_block() for _ in range(5))
    before = builder.block
    builder.branch(head)

    builder.position_at_end(head)
    seen = builder.phi(I64)
    seen.add_incoming(e.integer(0), before)

    def is_new() -> Value:
        return e.compare("!=", atomic_load(e, step, 8 * Word.GO), seen)

    awake = emit_spin(e, step, is_new, word(e, step, Word.SPIN_LIMIT))
    builder.cbranch(awake, changed, idle)

    builder.position_at_end(idle)
    atomic_store(e, 1, own)
    with e.either(is_new()) as (then, otherwise):
        with then, e.when(e.compare("==", _exchange(e, own, 0), 0)):
            _acquire(e, step, own)
        with otherwise:
            _acquire(e, step, own)
    seen.add_incoming(seen, builder.block)
    builder.branch(head)

    builder.position_at_end(changed)
    go = atomic_load(e, step, 8 * Word.GO)
    builder.cbranch(e.compare("==", atomic_load(e, step, 8 * Word.STOP), 0), run, leave)
    builder.position_at_end(run)
    with e.when(e.compare("<", thread, e.bit_and(go, (1 << GO_THREAD_BITS) - 1))):
        _emit_walk(e, step, thread)
    seen.add_incoming(go, builder.block)
    builder.branch(head)
    builder.position_at_end(leave)


def emit_wake(e: Emitter, _: Value, step: Value, threads: Value) -> None:
    """Change the go word, so that threads 1 to `threads` - 1 take part, and release those of them that are parked."""
    epoch = e.add(e.shift_right(atomic_load(e, step, 8 * Word.GO), GO_THREAD_BITS), 1)
    atomic_store(e, e.bit_or(e.shift_left(epoch, GO_THREAD_BITS), threads), step, 8 * Word.GO)

    def wake(thread: Value, carried: list[Value]) -> None:
        own = e.at(step, e.mul(thread, 8 * LINE), 8 * Word.PARKED)
        with e.when(e.compare("==", _exchange(e, own, 0), 1)):
            _call(e, word(e, step, Word.RELEASE), VOID, e.field(own, 1))

    e.loop(threads, [], wake, start=1)


def emit_step(e: Emitter, record: Value, step: Value, threads: Value) -> None:
    """One step of the owner, which is thread 0 of `threads`."""
    e.store(threads, step, 8 * Word.THREADS)
    e.store(atomic_load(e, step, 8 * Word.ARRIVALS), step, 8 * Word.FIRST_ARRIVAL)
    emit_wake(e, record, step, threads)
    _emit_walk(e, step, e.integer(0))


def _emit_walk(e: Emitter, step: Value, thread: Value) -> None:
    """Run every operation of the table, with a barrier after those that ask for one."""
    threads = word(e, step, Word.THREADS)
    table, count = word(e, step, Word.OPERATIONS), word(e, step, Word.OPERATION_COUNT)

    def operation(i: Value, carried: list[Value]) -> list[Value]:
        target, since = carried
        record = e.add(table, e.mul(i, 8 * RECORD_WORDS))
        e.call_address(e.field(record, 0), record, step, thread)
        meets = e.bit_and(e.compare("!=", e.field(record, BARRIER_FIELD), 0), e.compare(">", threads, 1))
        target = e.add(target, e.select(meets, threads, 0))
        with e.when(meets):
            atomic_add(e, 1, step, 8 * Word.ARRIVALS)
            emit_spin(e, step, lambda: e.compare(">=", atomic_load(e, step, 8 * Word.ARRIVALS), target))
        now = emit_clock(e)
        with e.when(e.compare("==", thread, 0)):
            kind = e.bit_and(e.field(record, KIND_FIELD), PROFILE_KINDS - 1)
            line = e.at(step, e.mul(kind, 8), 8 * Word.PROFILE)
            e.store(e.add(e.load(I64, line), e.sub(now, since)), line)
        return [target, now]

    e.loop(count, [word(e, step, Word.FIRST_ARRIVAL), emit_clock(e)], operation)


def emit_spin(e: Emitter, step: Value, done: Callable[[], Value], limit: Value | None = None) -> Value:
    """Pause until `done()` holds or, with a limit, that many pauses went by; returns whether `done()` held."""
    builder = e.builder
    head, wait, after = (builder.append_basic_block() for _ in range(3))
    before = builder.block
    builder.branch(head)
    builder.position_at_end(head)
    spins = builder.phi(I64)
    spins.add_incoming(e.integer(0), before)
    finished = done()
    leave = finished if limit is None else e.bit_or(finished, e.compare(">=", spins, limit))
    builder.cbranch(leave, after, wait)
    builder.position_at_end(wait)
    pause(e)
    more = e.add(spins, 1)
    with e.when(e.compare("==", e.bit_and(more, _SPINS_PER_YIELD - 1), 0)):
        _call(e, word(e, step, Word.YIELD), I32)
    spins.add_incoming(more, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return finished


def _exchange(e: Emitter, address: Value, value: int) -> Value:
    return e.builder.atomic_rmw("xchg", e.pointer(address), e.integer(value), "seq_cst")


def _acquire(e: Emitter, step: Value, own: Value) -> None:
    """Block on the worker's lock until the owner releases it."""
    _call(e, word(e, step, Word.ACQUIRE), I32, e.field(own, 1), ir.Constant(I32, 1))


def _call(e: Emitter, address: Value, result: Type, *arguments: Value) -> Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return e.builder.call(e.builder.inttoptr(address, kind.as_pointer()), arguments)


def emit_clock(e: Emitter) -> Value:
    """The time stamp counter; elsewhere programs may not read a cycle counter, so the profile stays empty."""
    return e.call("llvm.readcyclecounter", I64) if e.isa.x86 else e.integer(0)
