"""How a page of the KV cache stores keys and values. Another storage type is another class with these methods.

A page holds 16 tokens of one layer: for each KV head [key_dim][16 keys], so that a register holds one channel of 16
keys, then for each KV head [16][value_dim]. Stored numbers are always finite (kernels multiply stale ones by zero).
"""

from __future__ import annotations

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
    def value_offset(self) -> int:
        """From the start of a page to its values."""
        return self.heads * self.key_head_bytes

    @property
    def page_bytes(self) -> int:
        """A whole page of the layer."""
        return self.extra_offset + self.page_type.extra_bytes(self.heads)

    @property
    def extra_offset(self) -> int:
        """From the start of a page to what lies behind its values."""
        return self.heads * (self.key_head_bytes + self.value_head_bytes)

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
