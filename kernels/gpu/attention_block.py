"""Attention as launches: the first products, rope and pages, attention itself, the output product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton

from localllm.kernels.kv_layout import PAGE_SIZE

from .activations import Format
from .attention_tiles import attention_sizes
from .model import GpuAttention, GpuLatentAttention
from .programs import attention as attention_programs
from .programs import decode_attention as decode_programs
from .programs import heads as head_programs
from .programs import latent as latent_programs

if TYPE_CHECKING:
    import torch

    from .activations import Activation
    from .flow import Flow, Machine
    from .inputs import StepInputs
    from .kv_pools import KVPools, LayerPool
    from .model import GpuLayer, GpuModel, GpuNorm

_SHORT_PAGES = 64  # up to which context decoding attention is best without tensor cores


class AttentionBlock:
    """Runs the attention of every layer for one bucket."""

    def __init__(self, machine: Machine, model: GpuModel, pools: KVPools, inputs: StepInputs) -> None:
        self._machine = machine
        self._model = model
        self._pools = pools
        self._inputs = inputs

    def input_formats(self, attention: GpuAttention | GpuLatentAttention) -> Format:
        """The formats of x that the first product reads."""
        first = attention.qkv if isinstance(attention, GpuAttention) else attention.first
        return self._machine.formats(first.matrices, self._inputs.bucket.rows)

    def run(self, flow: Flow, layer: GpuLayer) -> None:
        """From x to attended values in the workspace."""
        attention, pool = layer.attention, self._pools.layers[layer.index]
        group = self._model.layout.group_of(layer.index)
        if isinstance(attention, GpuAttention):
            self._grouped(flow, attention, pool, group)
        else:
            self._latent(flow, attention, pool, group)

    def finish(
        self,
        flow: Flow,
        attention: GpuAttention | GpuLatentAttention,
        scale: float,
        norm: GpuNorm | None,
        formats: Format,
        finished: bool,
    ) -> None:
        """residual += scale * output(attended); then x = norm(residual), `finished` or up to its last division."""
        post = attention.post_norm if isinstance(attention, GpuAttention) else None
        x, none = self._attended(attention), Format.NONE
        flow.add(attention.output, x, none, scale, post, norm, formats, finished=finished)

    def _attended(self, attention: GpuAttention | GpuLatentAttention) -> Activation:
        return self._machine.workspace.attended[attention.output.columns]

    def finish_aside(self, flow: Flow, attention: GpuAttention | GpuLatentAttention) -> None:
        """output(attended) in the workspace's `extra`: the feed-forward block beside it adds both."""
        space = self._machine.workspace
        part = flow.product(attention.output, self._attended(attention), Format.NONE, space.parts)
        rows, width = flow.rows, attention.output.rows
        values = part.values[: part.count * rows * width].view(part.count, rows * width)
        space.extra[: rows * width].copy_(values.sum(0))

    def _grouped(self, flow: Flow, attention: GpuAttention, pool: LayerPool, group: int) -> None:
        space, block = self._machine.workspace, attention.block
        part = flow.product(attention.qkv, flow.x, Format.NONE, space.qkv)
        formats = flow.formats(attention.output.matrices)
        out = self._attended(attention)
        crosses = bool(formats & Format.BYTES) and block.value_dim % 16 != 0  # groups of quants would cross heads
        target, stored = (space.latents, Format.NATURAL) if crosses else (out, formats)
        if self._few_short(block.heads):
            self._attend_one(attention, pool, group, target, stored, part.count)
        else:
            self._prepare(attention, pool, group, part.count)
            self._attend(attention, pool, group, target, stored)
        if crosses:
            flow.normalise(target.natural, target.padded, None, formats, out)

    def _few_short(self, heads: int) -> bool:
        """Whether attention is best without tensor cores: decoding few rows over a short context."""
        gpu, bucket = self._machine.gpu, self._inputs.bucket
        few = gpu.interpreted or bucket.rows * heads <= 2 * gpu.processors
        return bucket.decode and few and bucket.pages <= _SHORT_PAGES

    def _prepare(self, attention: GpuAttention, pool: LayerPool, group: int, parts: int) -> None:
        space, block, bucket = self._machine.workspace, attention.block, self._inputs.bucket
        head_programs.prepare[(bucket.rows, 3)](
            space.qkv,
            space.query,
            space.sink_query,
            pool.keys,
            pool.values,
            self._inputs.groups[group].slots,
            space.cos_sin,
            bucket.rows,
            *self._norm_pointers(attention),
            STRIDE=attention.qkv.rows,
            HEADS=block.heads,
            KV_HEADS=block.kv_heads,
            DK=block.key_dim,
            DV=block.value_dim,
            BK=triton.next_power_of_2(block.key_dim),
            BV=triton.next_power_of_2(block.value_dim),
            BQH=triton.next_power_of_2(block.heads),
            BKH=triton.next_power_of_2(block.kv_heads),
            PARTS=parts,
            **self._head_facts(attention),
            **self._machine.gpu.early(4),
        )

    def _attend_one(
        self, attention: GpuAttention, pool: LayerPool, group: int, out: Activation, formats: Format, parts: int
    ) -> None:
        gpu, space, inputs = self._machine.gpu, self._machine.workspace, self._inputs
        tables, block, bucket = inputs.groups[group], attention.block, inputs.bucket
        width = max(16, triton.next_power_of_2(max(block.key_dim, block.value_dim)))
        keys, splits, warps = self._one_shape(bucket.rows * block.heads, width, pool)
        decode_programs.attend_one[(bucket.rows, block.heads, splits)](
            space.qkv,
            pool.keys,
            pool.values,
            tables.slots,
            space.cos_sin,
            bucket.rows,
            *self._norm_pointers(attention),
            tables.tables,
            tables.sink_tokens,
            tables.window_starts,
            tables.row_index,
            inputs["positions"],
            gpu.nothing if attention.sinks is None else attention.sinks,
            block.scale,
            space.partial,
            space.partial_sums,
            space.counters,
            *out.pointers,
            STRIDE=attention.qkv.rows,
            HEADS=block.heads,
            KV_HEADS=block.kv_heads,
            DK=block.key_dim,
            DV=block.value_dim,
            B=width,
            T=keys,
            TABLE_STRIDE=bucket.pages,
            SPLITS=splits,
            WINDOW=block.window or 0,
            SOFTCAP=block.softcap or 0.0,
            SINKS=bucket.sinks,
            HAS_SINK_LOGITS=attention.sinks is not None,
            KP=out.padded,
            FORMATS=int(formats),
            PARTS=parts,
            **self._head_facts(attention),
            **gpu.early(warps),
        )

    def _one_shape(self, programs: int, width: int, pool: LayerPool) -> tuple[int, int, int]:
        """(keys a step, splits, warps) of decoding attention: a step's keys and values fill the registers."""
        gpu, longest = self._machine.gpu, self._inputs.bucket.pages * PAGE_SIZE
        if gpu.interpreted:
            return 32, 2 if longest >= 512 and programs <= 32 else 1, 4
        warps = 8 if programs <= gpu.processors else 4
        keys = max(16, warps * 32 * 128 * 2 // (width * pool.keys.element_size()))
        splits = 1
        while 2 * splits * programs <= 4 * gpu.processors and longest // splits > 2 * keys:
            splits *= 2
        return min(keys, 256), splits, warps

    def _latent(self, flow: Flow, attention: GpuLatentAttention, pool: LayerPool, group: int) -> None:
        machine, space, block = self._machine, self._machine.workspace, attention.block
        gpu, rows, inputs = machine.gpu, flow.rows, self._inputs
        flow.product_whole(attention.first, flow.x, space.qkv)
        stride = attention.first.rows
        first_rows = stride - block.latent_rank - block.rope.dimensions
        query, query_stride = space.qkv, stride
        if attention.query_up is not None:
            formats, low = flow.formats(attention.query_up.matrices), space.low_rank[attention.query_up.columns]
            flow.normalise(space.qkv, stride, attention.query_norm, formats, low)
            query, query_stride = space.latent_query, attention.query_up.rows
            flow.product_whole(attention.query_up, low, query)
        width = block.latent_rank + block.rope.dimensions
        head = block.nope_dim + block.rope.dimensions
        wide = 16 if rows <= 16 else 32
        outs = (space.query, space.sink_query) if inputs.bucket.sinks else (space.query,)
        source = (query_stride, head, block.nope_dim)
        target = (block.heads * width, width, block.latent_rank)
        for out in outs:
            self._head_products(query, attention.key_up, out, rows, source, target, block.heads, wide)
        norm = attention.latent_norm
        latent_programs.prepare_latent[(rows, block.heads + 1)](
            space.qkv[first_rows:],
            stride,
            query,
            query_stride,
            space.query,
            space.sink_query,
            gpu.nothing if norm.gain is None else norm.gain,
            gpu.nothing if norm.bias is None else norm.bias,
            norm.source.eps,
            pool.keys,
            inputs.groups[group].slots,
            space.cos_sin,
            rows,
            HEADS=block.heads,
            RANK=block.latent_rank,
            NOPE=block.nope_dim,
            BR=triton.next_power_of_2(block.latent_rank),
            HALF=block.rope.dimensions // 2,
            BH=triton.next_power_of_2(block.rope.dimensions // 2),
            TABLE_HALF=self._model.frequencies.shape[1],
            INTERLEAVED=block.rope.interleaved,
            TABLE=attention.rope,
            SINK_TABLE=self._sink_table(attention.rope),
            HAS_GAIN=norm.gain is not None,
            HAS_BIAS=norm.bias is not None,
            SUBTRACT_MEAN=norm.source.subtract_mean,
            **gpu.early(4),
        )
        latents = space.latents
        self._attend(attention, pool, group, latents, Format.NATURAL)
        values = flow.formats(attention.output.matrices)
        source = (latents.padded, block.latent_rank, block.latent_rank)
        target = (attention.output.columns, block.value_dim, block.value_dim)
        self._head_products(latents.natural, attention.value_up, space.extra, rows, source, target, block.heads, wide)
        flow.normalise(space.extra, attention.output.columns, None, values, self._attended(attention))

    def _head_products(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        y: torch.Tensor,
        rows: int,
        source: tuple[int, int, int],
        target: tuple[int, int, int],
        heads: int,
        wide: int,
    ) -> None:
        """y[m, h] = weights[h] @ x[m, h]; `source` and `target` are (row step, head step, values)."""
        outputs = min(64, max(16, triton.next_power_of_2(target[2])))
        latent_programs.head_products[(heads, -(-rows // wide), -(-target[2] // outputs))](
            x,
            weights,
            y,
            rows,
            ROW=source[0],
            HEAD=source[1],
            K=source[2],
            N=target[2],
            OUT_ROW=target[0],
            OUT_HEAD=target[1],
            BM=wide,
            BN=outputs,
            BK=32,
            **self._machine.gpu.early(4),
        )

    def _attend(
        self,
        attention: GpuAttention | GpuLatentAttention,
        pool: LayerPool,
        group: int,
        out: Activation,
        formats: Format,
    ) -> None:
        machine, inputs, bucket = self._machine, self._inputs, self._inputs.bucket
        gpu, space, nothing = machine.gpu, machine.workspace, machine.gpu.nothing
        tables, heads = inputs.groups[group], attention.block.heads
        grouped = attention if isinstance(attention, GpuAttention) else None
        kv_heads = 1 if grouped is None else grouped.block.kv_heads
        key_dim = pool.keys.shape[-1]
        rest = 0 if isinstance(attention, GpuAttention) else attention.block.rope.dimensions
        value_dim = attention.block.value_dim if isinstance(attention, GpuAttention) else attention.block.latent_rank
        sinks = None if grouped is None else grouped.sinks
        tiles = inputs["tiles"]
        lines = max(16, triton.next_power_of_2(inputs.rows_a_tile * (heads // kv_heads)))
        keys, splits, warps = self._shape(len(tiles) * kv_heads, lines, pool, attention)
        result: dict[str, Any] = {"HEADS": heads, "KV_HEADS": kv_heads, "DV": value_dim, "BM": lines, "SPLITS": splits}
        result |= {"BV": max(16, triton.next_power_of_2(value_dim)), "KP": out.padded, "FORMATS": int(formats)}
        attention_programs.attend[(len(tiles), kv_heads, splits)](
            space.query,
            space.sink_query,
            pool.keys,
            pool.keys if grouped is None else pool.values,
            bucket.rows,
            tiles,
            tables.tables,
            tables.sink_tokens,
            tables.window_starts,
            tables.row_index,
            inputs["positions"],
            inputs["ancestors"],
            nothing if sinks is None else sinks,
            attention.block.scale,
            space.partial,
            space.partial_sums,
            *out.pointers,
            DK=key_dim,
            BK=max(16, triton.next_power_of_2(key_dim - rest)),
            D2=rest,
            B2=max(16, triton.next_power_of_2(rest)),
            BN=keys,
            TABLE_STRIDE=bucket.pages,
            WINDOW=attention.block.window or 0,
            SOFTCAP=0.0 if grouped is None else grouped.block.softcap or 0.0,
            SINKS=bucket.sinks,
            HAS_SINK_LOGITS=sinks is not None,
            TREE=bucket.tree,
            EXACT=machine.exact,
            **result,
            **gpu.early(warps, 2),
        )
        if splits > 1:
            parts = (space.partial, space.partial_sums, tiles)
            attention_programs.merge[(len(tiles), kv_heads, lines)](*parts, *out.pointers, **result, **gpu.early(4))

    def _shape(
        self, programs: int, lines: int, pool: LayerPool, attention: GpuAttention | GpuLatentAttention
    ) -> tuple[int, int, int]:
        """(keys a step, splits, warps) of the attention kernel: as many programs as lie on the card at once."""
        gpu, bucket = self._machine.gpu, self._inputs.bucket
        key_width = pool.keys.shape[-1]
        sizes = attention_sizes(attention, pool.keys.element_size(), exact=self._machine.exact, sinks=bucket.sinks)
        keys = sizes.most_keys(gpu, lines)
        width = max(16, triton.next_power_of_2(pool.values.shape[-1] or key_width))
        most = min(3 * gpu.processors, self._machine.workspace.partial.numel() // (lines * width)) // max(1, programs)
        if gpu.interpreted:
            return keys, 3 if bucket.pages >= 32 and bucket.rows <= 8 and programs <= 32 else 1, 4
        return keys, max(1, min(most, bucket.pages * PAGE_SIZE // 128)), 4 if lines <= 64 else 8

    def _sink_table(self, rope: int) -> int:
        if not self._inputs.bucket.sinks or rope < 0:
            return -1
        return rope + max(1, self._model.rope_tables)

    def _norm_pointers(self, attention: GpuAttention) -> tuple[Any, ...]:
        nothing = self._machine.gpu.nothing
        found: list[Any] = []
        for norm in (attention.query_norm, attention.key_norm):
            found.append(nothing if norm is None or norm.gain is None else norm.gain)
            found.append(nothing if norm is None or norm.bias is None else norm.bias)
            found.append(0.0 if norm is None else norm.source.eps)
        return tuple(found)

    def _head_facts(self, attention: GpuAttention) -> dict[str, Any]:
        """The constants of norms and rope that `prepare` and a fused `attend` share."""
        block = attention.block
        rope = block.rope
        query, key = attention.query_norm, attention.key_norm
        return {
            "HALF": 0 if rope is None else rope.dimensions // 2,
            "TABLE_HALF": self._model.frequencies.shape[1],
            "INTERLEAVED": rope is not None and rope.interleaved,
            "SINK_TABLE": self._sink_table(attention.rope),
            "TABLE": max(0, attention.rope),
            "NORM": _norm_kind(query),
            "K_NORM": _norm_kind(key),
            "Q_SPAN": _norm_span(query, block.heads, block.key_dim),
            "K_SPAN": _norm_span(key, block.kv_heads, block.key_dim),
            "AFTER": block.norm_after_rope,
            "Q_GAIN": query is not None and query.gain is not None,
            "Q_BIAS": query is not None and query.bias is not None,
            "K_GAIN": key is not None and key.gain is not None,
            "K_BIAS": key is not None and key.bias is not None,
            "Q_ALL": triton.next_power_of_2(block.heads * block.key_dim),
            "K_ALL": triton.next_power_of_2(block.kv_heads * block.key_dim),
        }


def _norm_kind(norm: GpuNorm | None) -> int:
    if norm is None:
        return head_programs.NO_NORM.value
    return head_programs.LAYER.value if norm.source.subtract_mean else head_programs.RMS.value


def _norm_span(norm: GpuNorm | None, heads: int, width: int) -> int:
    if norm is None or norm.source.weight is None:
        return head_programs.EACH_HEAD.value
    shape = norm.source.weight.shape
    if len(shape) == 2:
        return head_programs.OWN_GAIN.value
    return head_programs.ALL_HEADS.value if shape[0] == heads * width and heads > 1 else head_programs.EACH_HEAD.value
