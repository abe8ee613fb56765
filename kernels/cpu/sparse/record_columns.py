"""The columns of the neurons of a run: sum += scales * (levels of the activations . codes), four neurons at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.ir_types import F32, F32X16, I8, I32, I32X16, I64, Value, vector
from localllm.kernels.cpu.operation import load_index
from localllm.kernels.cpu.vector_math import round_to_integer

from .codes import UNIT
from .dot import emit_dot, emit_nibbles, high_exponent
from .record_rows import SECOND_LEVEL
from .records import LINE, emit_load_scales, scale_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.kernels.cpu.emit import Emitter

    from .records import RecordForm

QUAD = 4
# what is noted of a group: where its fields lie
_POINTERS, _QUADS, _SCALES, _SCALE, _START, _MINIMUM, _LEVELS, _NOTE = 0, 8, 16, 24, 28, 32, 64, 128


class Columns:
    """The kernel for runs of up to `most_blocks` blocks; `scales` and `minimums` are those of the down matrix.

    For each neuron of a run it reads `hidden` and two addresses: of its record, and of one that the next run needs.
    """

    def __init__(self, e: Emitter, form: RecordForm, most_blocks: int, scales: Value, minimums: Value) -> None:
        self._e, self._form, self._most_blocks = e, form, most_blocks
        self._bases = [scales, minimums] if form.down.minimum else [scales]
        most = UNIT * most_blocks
        self.hidden = e.scratch(4 * (most + UNIT))
        self.pointers, self.later = (e.scratch(8 * (most + QUAD)) for _ in range(2))
        self._later_offset = e.sub(e.address(self.later), e.address(self.pointers))
        self._group_bytes = UNIT * form.units * scale_bytes(form.down)
        self._notes = e.scratch(_NOTE * (most // form.down.group + 1))

    def add(self, edges: Value, first: Value, after: Value, before: Value, total: Value) -> None:
        """Add blocks [first, after) to the sum; `before` of the list are those of earlier runs, `edges` its starts."""
        e, form = self._e, self._form
        count = e.sub(load_index(e, edges, e.mul(after, 2)), before)
        for pointers in (self.pointers, self.later):
            final = e.load(I64, pointers, e.mul(e.sub(count, 1), 8))
            for k in range(QUAD - 1):
                e.store(final, pointers, e.mul(count, 8), 8 * k)
        per_block = UNIT // form.down.group

        def note(group: Value, carried: list[Value]) -> list[Value]:
            return [self._note_group(edges, group, before, carried[0])]

        groups = e.loop(e.mul(after, per_block), [e.integer(0)], note, start=e.mul(first, per_block))[0]
        done = 0
        for piece in sorted(set(form.pieces), reverse=True):
            number = form.pieces.count(piece)

            def one(i: Value, _: list[Value], piece: int = piece, done: int = done) -> None:
                self._piece(piece, e.add(e.mul(i, piece), done), groups, total)

            if number == 1:
                one(e.integer(0), [])
            else:
                e.loop(number, [], one)
            done += number * piece

    def _note_group(self, edges: Value, group: Value, before: Value, index: Value) -> Value:
        """Write down the `index`-th group that has neurons, if this one has any; returns the next index.

        Its activations become int8 levels of one scale, as the dense kernels round a block of 32.
        """
        e, form = self._e, self._form
        size = form.down.group
        start, stop = (load_index(e, edges, e.mul(e.add(group, k), size // 16)) for k in range(2))
        count, place = e.sub(stop, start), e.sub(start, before)
        hidden = []
        for at in range(0, size, 16):
            part = e.load(F32X16, self.hidden, e.mul(place, 4), 4 * at)
            here = e.compare("<", e.constant(I32X16, range(at, at + 16)), e.splat(e.convert(count, I32), 16))
            hidden.append(e.select(here, part, 0.0))
        largest = e.horizontal_max(_both(e, e.max, [e.abs(part) for part in hidden]))
        inverse = e.select(e.compare(">", largest, 0.0), e.div(e.constant(F32, 127.0), largest), 0.0)
        scale = e.mul(largest, 1.0 / 127.0)
        values = [round_to_integer(e, e.mul(part, e.splat(inverse, 16))) for part in hidden]
        note = e.at(self._notes, e.mul(index, _NOTE))
        for i, part in enumerate(values):
            e.store(e.convert(part, I8), note, _LEVELS + 16 * i)
        whole = e.horizontal_sum(_both(e, e.add, values))
        fields = {
            _POINTERS: e.address(e.at(self.pointers, e.mul(place, 8))),
            _QUADS: e.div(e.add(count, QUAD - 1), QUAD),
            _SCALES: e.mul(group, self._group_bytes),
            _SCALE: scale,
            _START: e.mul(whole, -form.down.zero_point),
            _MINIMUM: e.mul(scale, e.convert(whole, F32)),
        }
        for at, value in fields.items():
            e.store(value, note, at)
        return e.add(index, e.convert(e.compare(">", count, 0), I64, signed=False))

    def _piece(self, size: int, at: Value, groups: Value, total: Value) -> None:
        """`2 * size` outputs, whose codes are `size` bytes of each column, `at` bytes from its start."""
        e, lanes, exponent, codes = self._e, size // QUAD, high_exponent(self._e), self._form.down
        outputs, step = e.mul(at, 2), 2 * size * scale_bytes(codes)
        places = [lanes * t + size * h for t in range(4) for h in range(2)]
        total = e.at(total, e.mul(outputs, 4))
        bases = [e.at(base, e.mul(outputs, scale_bytes(codes))) for base in self._bases]
        next_run = self._most_blocks * UNIT // codes.group * self._group_bytes

        def group(index: Value, carried: list[Value]) -> list[Value]:
            note = e.at(self._notes, e.mul(index, _NOTE))
            pointers, quads, offset = (e.load(I64, note, field) for field in (_POINTERS, _QUADS, _SCALES))
            scales = [e.at(base, offset) for base in bases]
            for base in scales:
                for line in range(0, step, LINE):
                    e.prefetch(base, next_run, line, locality=SECOND_LEVEL)
            later = e.at(pointers, self._later_offset)

            def quad(q: Value, sums: list[Value]) -> list[Value]:
                runs, asked = (
                    [e.load(I64, base, e.mul(q, 8 * QUAD), 8 * i) for i in range(QUAD)] for base in (pointers, later)
                )
                for column in asked:
                    e.prefetch(column, at, locality=SECOND_LEVEL)
                dwords = _interleave(e, [e.load(vector(I8, size), run, at) for run in runs])
                levels = e.bitcast(e.load_splat(I32, lanes, note, e.mul(q, QUAD), _LEVELS), dwords[0].type)
                nibbles = [half for four in dwords for half in emit_nibbles(e, four)]
                return [emit_dot(e, before, half, levels) for before, half in zip(sums, nibbles, strict=True)]

            start = e.load(I32, note, _START)
            starts = [e.splat(e.shift_left(start, shift) if shift else start, lanes) for shift in (0, exponent)]
            sums = e.loop(quads, starts * 4, quad)
            scale = e.load(F32, note, _SCALE)
            factors = [e.splat(e.mul(scale, 0.5**shift), lanes) for shift in (0, exponent)]
            result = []
            for i, place in enumerate(places):
                value = e.mul(e.convert(sums[i], F32), factors[i % 2])
                result.append(e.fma(emit_load_scales(e, codes, lanes, scales[0], place), value, carried[i]))
            if codes.minimum:
                least = e.load_splat(F32, lanes, note, _MINIMUM)
                for i, place in enumerate(places):
                    smallest = emit_load_scales(e, codes, lanes, scales[1], place)
                    result[i] = e.fma(smallest, least, result[i])
            return result

        sums = e.loop(groups, [e.load(vector(F32, lanes), total, 4 * place) for place in places], group)
        for value, place in zip(sums, places, strict=True):
            e.store(value, total, 4 * place)


def _both(e: Emitter, combine: Callable[[Value, Value], Value], parts: list[Value]) -> Value:
    return parts[0] if len(parts) == 1 else combine(*parts)


def _interleave(e: Emitter, columns: list[Value]) -> list[Value]:
    """Four vectors of bytes as four of which each dword has a byte of each; see `records` for their order."""

    def unpack(a: Value, b: Value, size: int) -> list[Value]:
        """The lower and the upper halves of each 16 bytes, items of `size` bytes from a and b in turn."""
        count, per = a.type.count, 8 // size
        result = []
        for half in range(2):
            order = []
            for lane in range(0, count, 16):
                for i in range(per):
                    first = lane + 8 * half + i * size
                    order += [*range(first, first + size), *range(count + first, count + first + size)]
            result.append(e.shuffle(a, order, b))
        return result

    first, second = unpack(columns[0], columns[1], 1), unpack(columns[2], columns[3], 1)
    return [part for a, b in zip(first, second, strict=True) for part in unpack(a, b, 2)]
