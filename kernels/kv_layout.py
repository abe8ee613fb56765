"""How the KV cache of a model is laid out: groups of layers that share page tables, and what a page holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .errors import ExecutionError, UnsupportedModelError
from .kv_quantise import QUANTISATIONS, value_groups
from .spec import LatentAttention

if TYPE_CHECKING:
    from .spec import ModelSpec

KVType = Literal["f32", "f16", "q8", "q4", "q2"]
QUANTISED: frozenset[KVType] = frozenset({"q8", "q4", "q2"})
SEAL_TOKENS = 128  # recent tokens of a quantised cache stay in full precision until this many can be sealed at once
PAGE_SIZE = 16  # tokens; also the number of keys that a SIMD register row holds side by side


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer stores for a token: `heads` keys of `key_dim` and values of `value_dim` (0: MLA, value = key)."""

    heads: int
    key_dim: int
    value_dim: int

    def page_bytes(self, kv_type: KVType) -> int:
        """Bytes of a page of this type: heads in whole registers, and what quantised types need for steps and zeros."""
        key, value = _padded(self.key_dim), _padded(self.value_dim)
        if kv_type not in QUANTISED:
            return self.heads * PAGE_SIZE * (key + value) * (4 if kv_type == "f32" else 2)
        codes = PAGE_SIZE * (key + value) * QUANTISATIONS[kv_type].bits // 8
        key_steps_and_zeros = key + key // 4
        value_steps_and_zeros = 2 * PAGE_SIZE * len(value_groups(self.value_dim))
        return self.heads * (codes + key_steps_and_zeros + value_steps_and_zeros) + _padded(2 * self.heads)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep and drop the same positions, hence share page tables. `window` is their native one."""

    layers: tuple[int, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The groups of a model and each layer's shape."""

    groups: tuple[CacheGroup, ...]
    layers: tuple[LayerKV, ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> KVLayout:
        """Group the layers of `spec` by their native window, in order of first appearance."""
        groups: dict[int | None, list[int]] = {}
        shapes = []
        for index, layer in enumerate(spec.layers):
            attention = layer.attention
            groups.setdefault(attention.window, []).append(index)
            if isinstance(attention, LatentAttention):
                shapes.append(LayerKV(1, attention.latent_rank + attention.rope.dimensions, 0))
            else:
                shapes.append(LayerKV(attention.kv_heads, attention.key_dim, attention.value_dim))
        return cls(tuple(CacheGroup(tuple(v), k) for k, v in groups.items()), tuple(shapes))

    def group_of(self, layer: int) -> int:
        """Index of the group that holds `layer`."""
        return next(i for i, group in enumerate(self.groups) if layer in group.layers)

    def check_staging(self, kv_type: KVType, staging_pages: tuple[int, ...]) -> None:
        """Raise ExecutionError when a quantised cache has no pages that rows can be written to."""
        if kv_type in QUANTISED and (len(staging_pages) != len(self.groups) or not all(staging_pages)):
            raise ExecutionError(f"a {kv_type} KV cache needs staging pages in each of its {len(self.groups)} groups")

    def values_per_token(self, group: int) -> int:
        """Stored numbers per token over all layers of a group."""
        shapes = (self.layers[i] for i in self.groups[group].layers)
        return sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in shapes)


def check_kv_type(spec: ModelSpec, kv_type: KVType) -> None:
    """Raise UnsupportedModelError for a quantised cache of latent vectors."""
    if kv_type in QUANTISED and any(isinstance(layer.attention, LatentAttention) for layer in spec.layers):
        raise UnsupportedModelError(
            f"{spec.architecture} models keep latent vectors (MLA), for which there is no {kv_type} KV cache",
            hint="Use an f16 KV cache; a latent is several times smaller than keys and values already.",
        )


def _padded(count: int) -> int:
    return -(-count // PAGE_SIZE) * PAGE_SIZE
