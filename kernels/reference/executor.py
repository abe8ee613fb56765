"""A step from token ids to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions, MemoryUse
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.selective import check_model, check_type
from localllm.kernels.spec import LatentAttention, MixtureOfExperts
from localllm.kernels.step import Output

from .attention import attend, attend_latent, attend_selectively
from .cache import PagedCache
from .feed_forward import feed_forward, mixture_of_experts
from .operations import normalise, softcap
from .weights import Weights

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import Layer, ModelSpec
    from localllm.kernels.step import Step

    from .weights import Real


class ReferenceExecutor:
    """Runs any spec in numpy, in float32 or float64 throughout.

    `cache_bytes` bounds the memory of dequantised weights. The kv type f32 stores keys and values in `dtype`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        options: ExecutorOptions | None = None,
        dtype: type[np.float32] | type[np.float64] = np.float32,
        cache_bytes: int = 2 << 30,
    ) -> None:
        self.spec = spec
        self.layout = KVLayout.of(spec)
        self.max_rows = (options or ExecutorOptions()).max_rows
        self._dtype: np.dtype[np.floating] = np.dtype(dtype)
        self._weights = Weights(self._dtype, cache_bytes)
        self._cache: PagedCache | None = None
        self._selective = options.selective if options else None
        check_model(self._selective, spec)

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...] = ()) -> None:
        """Make the page pools; UnsupportedModelError for a quantised `kv_type` with latent attention."""
        check_type(self._selective, kv_type)
        self._cache = PagedCache(self.spec, self.layout, pages, kv_type, self._dtype, staging_pages)

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Run the rows of `step`: [R, vocabulary] logits or [R, hidden], float32."""
        return self.forward_exact(step).astype(np.float32)

    def forward_exact(self, step: Step) -> Real:
        """`forward` in the executor's own dtype."""
        if len(step.tokens) > self.max_rows:
            raise ExecutionError(f"a step of {len(step.tokens)} rows, but max_rows is {self.max_rows}")
        cache = self._pages()
        cache.move(step.moves)
        x = self._embed(step)
        tapped = []
        for index, layer in enumerate(self.spec.layers):
            x = self._layer(index, layer, step, x)
            if index in step.taps:
                tapped.append(x[step.output_rows])
        x = x[step.output_rows]
        head = self.spec.head
        if head.norm is not None:
            x = normalise(x, head.norm, self._weights)
        if step.output is Output.HIDDEN:
            return x
        if step.hidden is not None:
            step.hidden[:] = np.hstack([x, *tapped])
        logits: Real = self._weights.linear(x, head.linear) * self._dtype.type(head.scale)
        return softcap(logits, head.softcap)

    def _embed(self, step: Step) -> Real:
        embed = self.spec.embed
        x: Real = self._weights.rows(embed.table, step.tokens) * self._dtype.type(embed.scale)
        if embed.positions is not None:
            x += self._weights.rows(embed.positions, step.positions + embed.position_offset)
        return x if embed.norm is None else normalise(x, embed.norm, self._weights)

    def _layer(self, index: int, layer: Layer, step: Step, x: Real) -> Real:
        """x + attention + feed-forward; `x` [M, hidden] is left as it is, the experts' router may need it."""
        scale = self._dtype.type(layer.residual_scale)
        tables = step.groups[self.layout.group_of(index)]
        stored = self._pages().layers[index]
        if isinstance(layer.attention, LatentAttention):
            attended = attend_latent(x, layer.attention, step, tables, stored, self._weights)
        elif self._selective is not None and layer.attention.window is None:
            scores = self._pages().scores[index]
            attended = attend_selectively(
                x, layer.attention, step, tables, stored, self._weights, self._selective, scores
            )
        else:
            attended = attend(x, layer.attention, step, tables, stored, self._weights)
        y: Real = x + scale * attended
        block, block_input = layer.feed_forward, x if layer.parallel else y
        if isinstance(block, MixtureOfExperts):
            fed = mixture_of_experts(block_input, x, block, self._weights)
        else:
            fed = feed_forward(block_input, block, self._weights)
        result: Real = y + scale * fed
        return result

    def read_page(self, group: int, page: int) -> bytes:
        """A page's keys and values, layer after layer of the group."""
        return self._pages().read_page(group, page)

    def forget_pages(self) -> None:
        """Nothing to do: a page is as good as a new one once its rows are written."""

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave; ExecutionError when its length is wrong."""
        self._pages().write_page(group, page, data)

    def memory(self) -> MemoryUse:
        """What is allocated now, under the device name "cpu"."""
        kv = 0 if self._cache is None else self._cache.nbytes
        return MemoryUse(weights={"cpu": self._weights.nbytes}, kv={"cpu": kv}, workspace={"cpu": 0})

    def describe(self) -> str:
        """One line for people."""
        return f"numpy reference in {self._dtype.name}"

    def close(self) -> None:
        """Free the dequantised weights and the pages."""
        self._weights = Weights(self._dtype, 0)
        self._cache = None

    def _pages(self) -> PagedCache:
        if self._cache is None:
            raise ExecutionError("allocate_kv was not called")
        return self._cache
