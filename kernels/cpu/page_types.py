"""How a page of the KV cache stores keys and values. Another storage type is another class with these methods.

A page holds 16 tokens of one layer: for each KV head [key_dim][16 keys], so that a register holds one channel of 16
keys, then for each KV head [16][value_dim]. Stored numbers are always finite (kernels multiply stale ones by zero).

In memory the pages of a head lie side by side: first all keys of the first head, page after page, then those of the
next; then all values in the same way; then what belongs to no head. So a head's context is one stream to read, as long
as the pages of a sequence are neighbours. (Page by page, with all heads in each, decode attention took half as long
again: the hardware looks ahead along a stream, but not from piece to piece.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from localllm.kernels.kv_layout import PAGE_SIZE

from .ir_types import F32X16, I16, Type, Value
from .vector_math import float_to_half, load_half

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import LayerKV

    from .emit import Emitter

LANES = PAGE_SIZE


def padded(count: int, multiple: int = LANES) -> int:
    """`count` rounded up."""
    return -(-count // multiple) * multiple


class PageType(Protocol):
    """A storage type of pages. `FloatPages` can be written number by number, `QuantisedPages` only as a whole."""

    @property
    def name(self) -> str:
        """As the settings call it."""

    def key_bytes(self, key_dim: int) -> int:
        """Bytes of one head's keys in a page."""

    def value_bytes(self, value_dim: int) -> int:
        """Bytes of one head's values in a page."""

    def extra_bytes(self, heads: int) -> int:
        """Bytes of a page behind all keys and values."""


@dataclass(frozen=True, slots=True)
class FloatPages:
    """Pages of float16 or float32 numbers; value rows are padded to whole registers."""

    name: str
    size: int
    largest: float

    def key_bytes(self, key_dim: int) -> int:
        """[key_dim][16] numbers."""
        return padded(key_dim) * LANES * self.size

    def value_bytes(self, value_dim: int) -> int:
        """[16][value_dim] numbers."""
        return padded(value_dim) * LANES * self.size

    def extra_bytes(self, heads: int) -> int:
        """None."""
        return 0

    def load_channel(self, e: Emitter, keys: Value, channel: Value) -> Value:
        """A row of the transposed page."""
        return self._load(e, e.at(keys, e.mul(channel, LANES * self.size)))

    def store_key(self, e: Emitter, vector: Value, keys: Value, channel: Value, slot: Value) -> None:
        """Sixteen scalars, one in each row of the transposed page."""
        numbers = self._pack(e, vector)
        target = e.at(keys, e.mul(channel, LANES * self.size), e.mul(slot, self.size))
        for lane in range(LANES):
            e.store(e.lane(numbers, lane), target, lane * LANES * self.size)

    def load_value(self, e: Emitter, values: Value, value_dim: int, slot: Value, channel: Value | int) -> Value:
        """A piece of the slot's row."""
        return self._load(e, self._value(e, values, value_dim, slot, channel))

    def store_value(
        self, e: Emitter, vector: Value, values: Value, value_dim: int, slot: Value, channel: Value
    ) -> None:
        """A piece of the slot's row."""
        e.store(self._pack(e, vector), self._value(e, values, value_dim, slot, channel))

    def _value(self, e: Emitter, values: Value, value_dim: int, slot: Value, channel: Value | int) -> Value:
        return e.at(values, e.mul(slot, padded(value_dim) * self.size), e.mul(e.integer(channel), self.size))

    def _load(self, e: Emitter, address: Value) -> Value:
        return load_half(e, LANES, address) if self.size == 2 else e.load(F32X16, address)

    def _pack(self, e: Emitter, vector: Value) -> Value:
        """Finite numbers of the stored type: beyond the range they saturate, NaN becomes the lowest."""
        limited = e.min(e.max(vector, -self.largest), self.largest)
        return float_to_half(e, limited) if self.size == 2 else limited

    @property
    def element(self) -> Type:
        """The type of a stored number."""
        return I16 if self.size == 2 else F32X16.element


HALF_PAGES = FloatPages("f16", 2, 65504.0)
FLOAT_PAGES = FloatPages("f32", 4, 3.0e38)


@dataclass(frozen=True, slots=True)
class PageShape:
    """Where things are in the pages of one layer."""

    page_type: PageType
    heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def of(cls, layer: LayerKV, page_type: PageType) -> PageShape:
        """The pages of a layer."""
        return cls(page_type, layer.heads, layer.key_dim, layer.value_dim)

    @property
    def key_head_bytes(self) -> int:
        """Bytes of a head's keys."""
        return self.page_type.key_bytes(self.key_dim)

    @property
    def value_head_bytes(self) -> int:
        """Bytes of a head's values."""
        return self.page_type.value_bytes(self.value_dim)

    @property
    def extra_bytes(self) -> int:
        """Bytes of a page that belong to no head."""
        return self.page_type.extra_bytes(self.heads)

    @property
    def page_bytes(self) -> int:
        """A whole page of the layer; in one piece, it is the keys of all heads, their values, then the rest."""
        return self.heads * (self.key_head_bytes + self.value_head_bytes) + self.extra_bytes

    @property
    def floats(self) -> FloatPages:
        """The page type, of pages that rows are written to."""
        if not isinstance(self.page_type, FloatPages):
            raise TypeError(f"rows cannot be written to {self.page_type.name} pages")
        return self.page_type

    @property
    def values_are_keys(self) -> bool:
        """Latent attention: the value is the beginning of the key."""
        return self.value_dim == 0


@dataclass(frozen=True, slots=True)
class PagePool:
    """Where the `count` pages of a layer are."""

    shape: PageShape
    address: int = 0
    count: int = 0

    @property
    def fields(self) -> tuple[int, int]:
        """As record fields, for `PagePoolValue`."""
        return self.address, self.count


@dataclass(frozen=True, slots=True)
class LayerPages:
    """The pages of a layer, and those that rows are written to (of a quantised cache others, else the same)."""

    main: PagePool
    recent: PagePool


class PagePoolValue:
    """A `PagePool` inside a kernel."""

    __slots__ = ("_address", "_count", "_shape", "emitter")

    def __init__(self, e: Emitter, shape: PageShape, fields: Sequence[Value]) -> None:
        self.emitter, self._shape = e, shape
        self._address, self._count = fields

    def keys(self, head: Value) -> Value:
        """Address of the keys of a head in page 0; those of the next page are `key_head_bytes` further."""
        return self._at(0, head, self._shape.key_head_bytes)

    def values(self, head: Value) -> Value:
        """Address of the values of a head in page 0; those of the next page are `value_head_bytes` further."""
        return self._at(self._shape.heads * self._shape.key_head_bytes, head, self._shape.value_head_bytes)

    def extra(self) -> Value:
        """Address of what belongs to no head in page 0; that of the next page is `extra_bytes` further."""
        return self._at(self._shape.page_bytes - self._shape.extra_bytes, self.emitter.integer(0), 0)

    def _at(self, before: int, head: Value, head_bytes: int) -> Value:
        e = self.emitter
        page_bytes_before = e.add(e.mul(head, head_bytes), before)
        return e.add(self._address, e.mul(self._count, page_bytes_before))
