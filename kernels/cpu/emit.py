"""Writing SIMD kernels in Python: thin sugar over llvmlite's IRBuilder, used while Numba lowers an intrinsic.

A kernel is a function that emits code. Values are LLVM values; an address is an int64 value or a pointer, and every
method that takes one takes further byte offsets (values or Python integers), which fold into the addressing mode.
Arithmetic works on integers and floats, scalars and vectors; a Python number becomes a constant of the other operand's
type, a scalar beside a vector is not widened (use `splat`). A kernel that doubles `count` floats, a multiple of 16
(record: 0 source, 1 target, 2 count):

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, target, count = e.fields(record, 3)

        def body(i: Value, carried: list[Value]) -> None:
            e.store(e.mul(e.load(F32X16, source, e.mul(i, 4)), 2.0), target, e.mul(i, 4))

        e.loop(count, [], body, step=16)

`compile.py` turns it into machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .ir_types import (
    I8,
    I32,
    I64,
    POINTER,
    VOID,
    Number,
    Offset,
    Type,
    Value,
    element_type,
    float_bits,
    is_float,
    is_vector,
    suffix,
    vector,
)
from .isa import Isa


class Emitter:
    """Emits instructions at the builder's position for one instruction set."""

    __slots__ = ("builder", "isa", "module")

    def __init__(self, builder: Any, isa: Isa) -> None:
        self.builder = builder
        self.module = builder.module
        self.isa = isa

    # Constants and addresses

    def constant(self, kind: Type, value: float | Sequence[float]) -> Value:
        """A constant; for a vector type a number fills all lanes, a sequence gives each."""
        if is_vector(kind):
            lanes = [value] * kind.count if isinstance(value, (int, float)) else value
            return ir.Constant(kind, [ir.Constant(kind.element, lane) for lane in lanes])
        return ir.Constant(kind, value)

    def integer(self, value: Offset) -> Value:
        """An int64 value."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def pointer(self, address: Value) -> Value:
        """An address as a pointer."""
        return self.builder.inttoptr(address, POINTER) if address.type == I64 else address

    def address(self, pointer: Value) -> Value:
        """A pointer as an int64 address."""
        return pointer if pointer.type == I64 else self.builder.ptrtoint(pointer, I64)

    def at(self, address: Value, *offsets: Offset) -> Value:
        """The pointer that many bytes further."""
        pointer = self.pointer(address)
        for offset in offsets:
            if not (isinstance(offset, int) and offset == 0):
                pointer = self.builder.gep(pointer, [self.integer(offset)], source_etype=I8)
        return pointer

    # Memory

    def load(self, kind: Type, address: Value, *offsets: Offset, align: int | None = None) -> Value:
        """Load a value; unaligned unless `align` promises more (scalars: their size is fine on every target)."""
        return self.builder.load(self.at(address, *offsets), align=align or 1, typ=kind)

    def store(self, value: Value, address: Value, *offsets: Offset, align: int | None = None) -> None:
        """Store a value; unaligned unless `align` promises more."""
        self.builder.store(value, self.at(address, *offsets), align=align or 1)

    def load_splat(self, kind: Type, lanes: int, address: Value, *offsets: Offset) -> Value:
        """Load one element into all lanes."""
        return self.splat(self.load(kind, address, *offsets), lanes)

    def field(self, record: Value, index: int) -> Value:
        """The int64 field `index` of a record."""
        return self.load(I64, record, 8 * index, align=8)

    def fields(self, record: Value, count: int, start: int = 0) -> list[Value]:
        """`count` int64 fields from field `start`."""
        return [self.field(record, start + i) for i in range(count)]

    def scratch(self, size: int, align: int = 64) -> Value:
        """A pointer to `size` bytes on the stack, allocated once when the function is entered."""
        with self.builder.goto_entry_block():
            memory = self.builder.alloca(I8, ir.Constant(I32, size))
            memory.align = align
            # llvmlite gives a typed pointer; this round trip, which LLVM folds away, makes it an opaque one.
            return self.builder.inttoptr(self.builder.ptrtoint(memory, I64), POINTER)

    def lane_mask(self, lanes: int, count: Value) -> Value:
        """Lanes below `count` (int64, may be negative or beyond the lanes)."""
        numbers = self.constant(vector(I64, lanes), range(lanes))
        return self.builder.icmp_signed("<", numbers, self.splat(self.integer(count), lanes))

    def store_masked(self, value: Value, mask: Value, address: Value, *offsets: Offset) -> None:
        """Store a vector's masked lanes."""
        name = f"llvm.masked.store.{suffix(value.type)}.p0"
        self.call(name, VOID, value, self.at(address, *offsets), ir.Constant(I32, 1), mask)

    def prefetch(self, address: Value, *offsets: Offset, write: bool = False, locality: int = 3) -> None:
        """Ask for a cache line; locality 0 (used once) to 3 (keep)."""
        hints = (ir.Constant(I32, hint) for hint in (int(write), locality, 1))
        self.call("llvm.prefetch.p0", VOID, self.at(address, *offsets), *hints)

    # Arithmetic

    def _pair(self, a: Number, b: Number) -> tuple[Value, Value, bool]:
        if isinstance(a, (int, float)):
            if isinstance(b, (int, float)):
                raise TypeError("one operand must be a value")
            a = self.constant(b.type, a)
        elif isinstance(b, (int, float)):
            b = self.constant(a.type, b)
        return a, b, is_float(a.type)

    def add(self, a: Number, b: Number) -> Value:
        """a + b."""
        a, b, floating = self._pair(a, b)
        return self.builder.fadd(a, b) if floating else self.builder.add(a, b)

    def sub(self, a: Number, b: Number) -> Value:
        """a - b."""
        a, b, floating = self._pair(a, b)
        return self.builder.fsub(a, b) if floating else self.builder.sub(a, b)

    def mul(self, a: Number, b: Number) -> Value:
        """a * b."""
        a, b, floating = self._pair(a, b)
        return self.builder.fmul(a, b) if floating else self.builder.mul(a, b)

    def div(self, a: Number, b: Number) -> Value:
        """a / b; integers are taken as unsigned and rounded down (a power of two becomes a shift)."""
        a, b, floating = self._pair(a, b)
        return self.builder.fdiv(a, b) if floating else self.builder.udiv(a, b)

    def remainder(self, a: Number, b: Number) -> Value:
        """a mod b of unsigned integers."""
        a, b, _ = self._pair(a, b)
        return self.builder.urem(a, b)

    def neg(self, a: Value) -> Value:
        """-a."""
        return self.builder.fneg(a) if is_float(a.type) else self.builder.neg(a)

    def bit_and(self, a: Number, b: Number) -> Value:
        """a & b."""
        return self.builder.and_(*self._pair(a, b)[:2])

    def bit_or(self, a: Number, b: Number) -> Value:
        """a | b."""
        return self.builder.or_(*self._pair(a, b)[:2])

    def bit_xor(self, a: Number, b: Number) -> Value:
        """a ^ b."""
        return self.builder.xor(*self._pair(a, b)[:2])

    def shift_left(self, a: Number, b: Number) -> Value:
        """a << b."""
        return self.builder.shl(*self._pair(a, b)[:2])

    def shift_right(self, a: Number, b: Number, *, signed: bool = False) -> Value:
        """a >> b, filling with zeros unless signed."""
        a, b, _ = self._pair(a, b)
        return self.builder.ashr(a, b) if signed else self.builder.lshr(a, b)

    def compare(self, operator: str, a: Number, b: Number) -> Value:
        """One of < <= > >= == != as i1 lanes; integers are signed, any comparison with NaN is false (!= is true)."""
        a, b, floating = self._pair(a, b)
        if not floating:
            return self.builder.icmp_signed(operator, a, b)
        return (
            self.builder.fcmp_unordered(operator, a, b)
            if operator == "!="
            else self.builder.fcmp_ordered(operator, a, b)
        )

    def select(self, condition: Value, a: Number, b: Number) -> Value:
        """a where the condition holds, else b."""
        return self.builder.select(condition, *self._pair(a, b)[:2])

    def min(self, a: Number, b: Number) -> Value:
        """The smaller one; floats: b if either is NaN."""
        return self.select(self.compare("<", a, b), *self._pair(a, b)[:2])

    def max(self, a: Number, b: Number) -> Value:
        """The larger one; floats: b if either is NaN."""
        return self.select(self.compare(">", a, b), *self._pair(a, b)[:2])

    def abs(self, a: Value) -> Value:
        """|a| of floats."""
        return self.intrinsic("fabs", a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the hardware can."""
        if self.isa.fused_multiply_add:
            return self.intrinsic("fma", a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)

    def sqrt(self, a: Value) -> Value:
        """The square root."""
        return self.intrinsic("sqrt", a)

    # Conversions

    def bitcast(self, a: Value, kind: Type) -> Value:
        """The same bits as another type."""
        return self.builder.bitcast(a, kind)

    def convert(self, a: Value, element: Type, *, signed: bool = True) -> Value:
        """Lane by lane to another element type; floats are truncated towards zero on the way to integers."""
        source, kind = element_type(a.type), vector(element, a.type.count) if is_vector(a.type) else element
        builder = self.builder
        if source == element:
            return a
        if isinstance(source, ir.IntType):
            if isinstance(element, ir.IntType):
                if element.width < source.width:
                    return builder.trunc(a, kind)
                return builder.sext(a, kind) if signed else builder.zext(a, kind)
            return builder.sitofp(a, kind) if signed else builder.uitofp(a, kind)
        if isinstance(element, ir.IntType):
            return builder.fptosi(a, kind) if signed else builder.fptoui(a, kind)
        return builder.fpext(a, kind) if float_bits(element) > float_bits(source) else builder.fptrunc(a, kind)

    # Vectors

    def splat(self, a: Value, lanes: int) -> Value:
        """A scalar in all lanes."""
        undefined = ir.Constant(vector(a.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, a, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.constant(vector(I32, lanes), 0))

    def shuffle(self, a: Value, lanes: Sequence[int], b: Value | None = None) -> Value:
        """The lanes of a (and then of b) in another order."""
        return self.builder.shuffle_vector(a, a if b is None else b, self.constant(vector(I32, len(lanes)), lanes))

    def concatenate(self, a: Value, b: Value) -> Value:
        """The lanes of a, then those of b."""
        return self.shuffle(a, range(2 * a.type.count), b)

    def part(self, a: Value, index: int, parts: int) -> Value:
        """The `index`-th of `parts` equal pieces of a vector."""
        size = a.type.count // parts
        return self.shuffle(a, range(index * size, (index + 1) * size))

    def lane(self, a: Value, index: int) -> Value:
        """One lane."""
        return self.builder.extract_element(a, ir.Constant(I32, index))

    def _reduce(self, a: Value, combine: Callable[[Value, Value], Value]) -> Value:
        while a.type.count > 1:
            a = combine(self.part(a, 0, 2), self.part(a, 1, 2))
        return self.lane(a, 0)

    def horizontal_sum(self, a: Value) -> Value:
        """The sum of all lanes as a tree of halves: a fixed order."""
        return self._reduce(a, self.add)

    def horizontal_max(self, a: Value) -> Value:
        """The largest lane."""
        return self._reduce(a, self.max)

    def horizontal_min(self, a: Value) -> Value:
        """The smallest lane."""
        return self._reduce(a, self.min)

    # Control flow

    def loop(
        self,
        stop: Offset,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        *,
        start: Offset = 0,
        step: Offset = 1,
    ) -> list[Value]:
        """for i in range(start, stop, step): carried = body(i, carried). Returns the carried values after the loop."""
        builder, stop, before = self.builder, self.integer(stop), self.builder.block
        head, inside, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(self.integer(start), before)
        values = []
        for value in carried:
            values.append(builder.phi(value.type))
            values[-1].add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
        builder.position_at_end(inside)
        updated = body(index, list(values)) or []
        if len(updated) != len(values):
            raise ValueError(f"the loop carries {len(values)} values, its body returned {len(updated)}")
        index.add_incoming(self.add(index, step), builder.block)
        for phi, value in zip(values, updated, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return values

    def repeat_while(
        self,
        carried: Sequence[Value],
        condition: Callable[[list[Value]], Value],
        body: Callable[[list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """while condition(carried): carried = body(carried)."""
        builder, before = self.builder, self.builder.block
        head, inside, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        values = []
        for value in carried:
            values.append(builder.phi(value.type))
            values[-1].add_incoming(value, before)
        builder.cbranch(condition(list(values)), inside, after)
        builder.position_at_end(inside)
        for phi, value in zip(values, body(list(values)), strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return values

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """with e.when(condition): code that runs only if it holds."""
        with self.builder.if_then(condition):
            yield

    def either(self, condition: Value) -> Any:
        """with e.either(condition) as (then, otherwise): with then: ...; with otherwise: ..."""
        return self.builder.if_else(condition)

    # Calls

    def call(self, name: str, result: Type, *arguments: Value) -> Value:
        """Call a function of the process or an LLVM intrinsic by its full name."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.builder.call(function, arguments)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """Call an LLVM intrinsic that is overloaded on the type of its first argument and returns that type."""
        kind = arguments[0].type
        return self.call(f"llvm.{name}.{suffix(kind)}", kind, *arguments)

    def call_address(self, address: Value, *arguments: Value) -> None:
        """Call a kernel by its address."""
        kind = ir.FunctionType(VOID, [argument.type for argument in arguments])
        self.builder.call(self.builder.inttoptr(address, kind.as_pointer()), arguments)

    def outline(self, name: str, emit: Callable[[Emitter, list[Value]], None], arguments: Sequence[Value]) -> None:
        """Call a function of this module that `emit` writes on first use; `name` says all that it depends on."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(VOID, [a.type for a in arguments]), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            emit(Emitter(builder, self.isa), list(function.args))
            builder.ret_void()
        self.builder.call(function, arguments)
