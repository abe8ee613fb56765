"""How large a tile of attention may be: as large as pays, and no larger than the card's shared memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.errors import UnsupportedModelError

from .kv_pools import stored_type
from .model import GpuAttention
from .shared_memory import SPARE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localllm.kernels.kv_layout import KVType

    from .bucket import Bucket
    from .device import Gpu
    from .model import GpuLatentAttention, GpuModel

_MOST_LINES, _FEWEST_LINES, _FEWEST_KEYS = 128, 16, 16


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What decides how much shared memory a tile needs.

    `width`: of a stored key; `query` and `value`: of the parts that are multiplied at once, padded; `size`: bytes of a
    stored number; `group`: query heads that share a key head; `exact`: queries and shares are multiplied in two
    halves; `sinks`: there are two kinds of queries.
    """

    width: int
    query: int
    value: int
    size: int
    group: int
    exact: bool
    sinks: bool = False

    @property
    def fewest_lines(self) -> int:
        """All query heads of one row."""
        return max(_FEWEST_LINES, _power_of_two(self.group))

    def keys(self, lines: int) -> int:
        """Keys a step that a tile of so many lines would like to have."""
        return 64 if self.width <= 128 and lines <= _MOST_LINES else 32

    def nbytes(self, gpu: Gpu, lines: int, keys: int) -> int:
        """Bytes that `programs.attention.attend` needs for tiles of `lines` and `keys`: read off compiled kernels."""
        tensor_cores = self.size == 2 and not gpu.old_tensor_cores
        halves = (2 if self.exact and self.size == 2 else 1) * (2 if self.sinks else 1)
        query = lines * self.query * halves * (2 if tensor_cores else 4)
        key, value = keys * self.query * self.size, keys * self.value * self.size
        if not tensor_cores:
            return query + key + value
        return max(query + key, key + value + 2 * lines * keys) + SPARE

    def most_lines(self, gpu: Gpu) -> int:
        """The most lines (rows times query heads of a key head) that a tile may have, a power of two."""
        lines = _MOST_LINES
        while lines > self.fewest_lines and self.nbytes(gpu, lines, self.keys(lines)) > gpu.shared_memory:
            lines //= 2
        return max(lines, self.fewest_lines)

    def most_keys(self, gpu: Gpu, lines: int) -> int:
        """The most keys a step for a tile of so many lines."""
        keys = self.keys(lines)
        while keys > _FEWEST_KEYS and self.nbytes(gpu, lines, keys) > gpu.shared_memory:
            keys //= 2
        return keys


def attention_sizes(
    attention: GpuAttention | GpuLatentAttention, size: int, *, exact: bool, sinks: bool = False
) -> AttentionSizes:
    """The sizes of a layer's attention over stored numbers of `size` bytes."""
    block = attention.block
    if isinstance(attention, GpuAttention):
        key, value = attention.block.key_dim, attention.block.value_dim
        group = block.heads // attention.block.kv_heads
        return AttentionSizes(key, _padded(key), _padded(value), size, group, exact, sinks)
    latent = attention.block.latent_rank
    width = latent + attention.block.rope.dimensions
    return AttentionSizes(width, _padded(latent), _padded(latent), size, block.heads, exact, sinks)


def rows_a_tile(gpu: Gpu, layers: Iterable[AttentionSizes], bucket: Bucket) -> int:
    """Rows of a sequence that share a tile of attention: lines of a tile over query heads of a key/value head."""
    if bucket.decode:
        return 1
    found = list(layers)
    group, most = max(sizes.group for sizes in found), min(sizes.most_lines(gpu) for sizes in found)
    lines = _FEWEST_LINES
    while lines < most and lines < bucket.rows * group:
        lines *= 2
    return max(1, lines // group)


def check_attention(gpu: Gpu, model: GpuModel, kv_type: KVType, *, exact: bool) -> None:
    """UnsupportedModelError when even the smallest tile does not fit into the card's shared memory."""
    size = stored_type(kv_type).itemsize
    for layer in model.layers:
        sizes = attention_sizes(layer.attention, size, exact=exact)
        needed = sizes.nbytes(gpu, sizes.fewest_lines, _FEWEST_KEYS)
        if needed > gpu.shared_memory:
            raise UnsupportedModelError(
                f"attention of {sizes.group} query heads of {sizes.width} values needs {needed >> 10} KiB of shared "
                f"memory, but a program on {gpu.name} may have {gpu.shared_memory >> 10} KiB",
                hint="Use --device cpu.",
            )


def _padded(width: int) -> int:
    return max(16, _power_of_two(width))


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
