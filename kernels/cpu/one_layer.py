"""A whole line of guesses by one decoder layer in one native call: what Python does between steps costs more than it.

A step of a model streams all its weights through the caches, so every numpy call after it is a cold one of 10 us and
more. Here Numba compiles the loop, and matrices are the tiled kernels of `product.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Integers = npt.NDArray[np.int64]

Function = TypeVar("Function", bound=Callable[..., Any])
FIRST, AGAIN, QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN, HEAD = range(10)  # places of the matrices
INPUT_EPS, NEGLIGIBLE = 1e-6, 14


class Shape(NamedTuple):
    """Sizes of a layer. A row sees `window` rows; the ring of keys has room for more."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    window: int


class Network(NamedTuple):
    """What does not change. A matrix reads `inputs[i]` and writes `outputs[i]` when its kernel is called."""

    kernels: Integers  # [10, 2]: addresses of the kernel and its record
    inputs: tuple[Floats, ...]
    outputs: tuple[Floats, ...]
    table: npt.NDArray[np.int8]  # [V, hidden]: embeddings of the tokens that are guessed
    scales: Floats  # [V]: `table` times these are divided by the root of their mean square
    gains: Floats  # [3, hidden]: before attention, before feed-forward, before the head
    frequencies: npt.NDArray[np.float64]  # of rope, [dim / 2]
    eps: float


def _compiled(function: Function) -> Function:
    """By Numba, kept on the disk where that is possible."""
    try:
        return cast("Function", numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(function))
    except RuntimeError:  # there is no place for it
        return cast("Function", numba.njit(nogil=True, fastmath=True, error_model="numpy")(function))


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _call(context: Any, kernel: Any, record: Any) -> Any:
    """kernel(record, 0, 0) of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [whole] * 3)
        zero = ir.Constant(whole, 0)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1], zero, zero])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_compiled
def _norm(x: Floats, target: Floats, eps: float) -> None:
    """x / root mean square."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    factor = np.float32(1 / np.sqrt(total / len(x) + eps))
    for i in range(len(x)):
        target[i] = x[i] * factor


@_compiled
def _turn(x: Floats, position: int, frequencies: npt.NDArray[np.float64], dim: int) -> None:
    """Rope over neighbouring values."""
    for pair in range(len(frequencies)):
        angle = position * frequencies[pair]
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        for start in range(2 * pair, len(x), dim):
            a, b = x[start], x[start + 1]
            x[start] = a * cos - b * sin
            x[start + 1] = a * sin + b * cos


@_compiled
def _embed(network: Network, place: int, other: Floats, target: Floats) -> None:
    if place < 0:
        target[:] = other
    else:
        scale = network.scales[place]
        for i in range(len(target)):
            target[i] = network.table[place, i] * scale


@_compiled
def _keep(network: Network, shape: Shape, x: Floats, position: int, keys: Floats, values: Floats) -> None:
    """The key and the value of a row; its normed input stays where the query is read from."""
    own = network.inputs[QUERY]
    _norm(x, own, network.eps)
    own *= network.gains[0]
    for matrix in (KEY, VALUE):
        network.inputs[matrix][:] = own
        _call(network.kernels[matrix, 0], network.kernels[matrix, 1])
    slot = position % keys.shape[2]
    _turn(network.outputs[KEY], position, network.frequencies, shape.dim)
    for head in range(shape.kv_heads):
        for i in range(shape.dim):
            keys[head, i, slot] = network.outputs[KEY][head * shape.dim + i]
            values[head, slot, i] = network.outputs[VALUE][head * shape.dim + i]


@_compiled
def _attend(network: Network, shape: Shape, position: int, keys: Floats, values: Floats) -> None:
    """Attended values, into the input of the output matrix."""
    _call(network.kernels[QUERY, 0], network.kernels[QUERY, 1])
    query, target = network.outputs[QUERY], network.inputs[OUTPUT]
    _turn(query, position, network.frequencies, shape.dim)
    ring, scale = keys.shape[2], np.float32(shape.dim**-0.5)
    used, seen = min(position + 1, ring), min(position + 1, shape.window)
    first = (position + 1 - seen) % ring
    scores = np.empty(used, np.float32)
    for head in range(shape.heads):
        group = head * shape.kv_heads // shape.heads
        scores[:] = 0
        for i in range(shape.dim):
            q, key = query[head * shape.dim + i] * scale, keys[group, i]
            for slot in range(used):
                scores[slot] += q * key[slot]
        largest = np.float32(-1e30)
        slot = first
        for _ in range(seen):
            largest = max(largest, scores[slot])
            slot = 0 if slot + 1 == ring else slot + 1
        out = target[head * shape.dim : (head + 1) * shape.dim]
        out[:] = 0
        whole = np.float32(0)
        slot = first
        for _ in range(seen):
            weight, value = np.exp(scores[slot] - largest), values[group, slot]
            whole += weight
            for i in range(shape.dim):
                out[i] += weight * value[i]
            slot = 0 if slot + 1 == ring else slot + 1
        for i in range(shape.dim):
            out[i] /= whole


@_compiled
def _finish(network: Network, shape: Shape, x: Floats, position: int, keys: Floats, values: Floats) -> None:
    """The rest of the layer for a row that is kept, and the head; `x` becomes the state."""
    kernels = network.kernels
    _attend(network, shape, position, keys, values)
    _call(kernels[OUTPUT, 0], kernels[OUTPUT, 1])
    x += network.outputs[OUTPUT]
    own = network.inputs[GATE]
    _norm(x, own, network.eps)
    own *= network.gains[1]
    network.inputs[UP][:] = own
    _call(kernels[GATE, 0], kernels[GATE, 1])
    _call(kernels[UP, 0], kernels[UP, 1])
    gate, up, inner = network.outputs[GATE], network.outputs[UP], network.inputs[DOWN]
    for i in range(len(inner)):
        inner[i] = gate[i] / (1 + np.exp(-gate[i])) * up[i]
    _call(kernels[DOWN, 0], kernels[DOWN, 1])
    x += network.outputs[DOWN]
    state = network.inputs[HEAD]
    _norm(x, state, network.eps)
    state *= network.gains[2]
    _call(kernels[HEAD, 0], kernels[HEAD, 1])
    x[:] = state


@_compiled
def _choose(logits: Floats) -> tuple[int, float]:
    """The largest and its share."""
    largest = np.float32(-1e30)
    for i in range(len(logits)):
        largest = max(largest, logits[i])
    best, total = 0, np.float32(0)
    for i in range(len(logits)):
        if logits[i] > largest - NEGLIGIBLE:
            total += np.exp(logits[i] - largest)
            if logits[i] == largest:
                best = i
    return best, float(1 / total)


@_compiled
def guess(
    network: Network,
    shape: Shape,
    vectors: Floats,
    places: Integers,
    others: Floats,
    start: int,
    most: int,
    least: float,
    keys: Floats,
    values: Floats,
    found: Integers,
    sureness: Floats,
) -> int:
    """Keep the model's rows and guess what follows: how many guesses are in `found` (places) and `sureness`.

    `vectors` [n, vectors * hidden] of the rows at `start`, `start` + 1, ...; `places` [n] of the tokens chosen behind
    them in the table, or -1: then `others` [n, hidden] has the embedding. `keys` [kv_heads, dim, ring] and `values`
    [kv_heads, ring, dim] of all rows so far. At most `most` guesses, and none (but the first) where the line is less
    likely than `least`.
    """
    hidden = shape.hidden
    x = np.empty(hidden, np.float32)
    for row in range(len(places)):
        joined = network.inputs[FIRST]
        _embed(network, places[row], others[row], joined[:hidden])
        for part in range(vectors.shape[1] // hidden):
            own = vectors[row, part * hidden : (part + 1) * hidden]
            _norm(own, joined[(part + 1) * hidden : (part + 2) * hidden], INPUT_EPS)
        _call(network.kernels[FIRST, 0], network.kernels[FIRST, 1])
        x[:] = network.outputs[FIRST]
        _keep(network, shape, x, start + row, keys, values)
    position, chance = start + len(places) - 1, 1.0
    for count in range(most):
        _finish(network, shape, x, position, keys, values)
        best, own_chance = _choose(network.outputs[HEAD])
        chance *= own_chance
        if count and chance < least:
            return count
        found[count], sureness[count] = best, own_chance
        if count + 1 == most:
            break
        joined = network.inputs[AGAIN]
        _embed(network, best, x, joined[:hidden])
        _norm(x, joined[hidden : 2 * hidden], INPUT_EPS)
        _call(network.kernels[AGAIN, 0], network.kernels[AGAIN, 1])
        x[:] = network.outputs[AGAIN]
        position += 1
        _keep(network, shape, x, position, keys, values)
    return most


def prepare(network: Network, shape: Shape, vectors: int, report: Callable[[float], None]) -> None:
    """Compile what `guess` consists of, or load it from the disk; `report` hears the share that is done.

    `vectors` of the model for each row.
    """
    ring = shape.window + 1
    keys = np.zeros((shape.kv_heads, shape.dim, ring), np.float32)
    values = np.zeros((shape.kv_heads, ring, shape.dim), np.float32)
    x, rows = np.ones(shape.hidden, np.float32), np.ones((1, vectors * shape.hidden), np.float32)
    places, found, sureness = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)
    parts: tuple[Callable[[], object], ...] = (
        lambda: _norm(x, x.copy(), network.eps),
        lambda: _turn(x, 0, network.frequencies, shape.dim),
        lambda: _embed(network, 0, rows[0], x),
        lambda: _choose(network.outputs[HEAD]),
        lambda: _keep(network, shape, x, 0, keys, values),
        lambda: _attend(network, shape, 0, keys, values),
        lambda: _finish(network, shape, x, 0, keys, values),
        lambda: guess(network, shape, rows, places, rows, 0, 1, 0.0, keys, values, found, sureness),
    )
    for done, part in enumerate(parts):
        report(done / len(parts))
        part()
    report(1.0)
