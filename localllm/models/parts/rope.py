"""Rotary embeddings from metadata: plain, linear, yarn, longrope and per-dimension factors, all in float64.

RoPE: https://arxiv.org/abs/2104.09864, YaRN: https://arxiv.org/abs/2309.00071, LongRoPE: https://arxiv.org/abs/2402.13753
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import UnsupportedModelError
from localllm.gguf_io import GGUFError, dequantize
from localllm.kernels.spec import Rope

if TYPE_CHECKING:
    import numpy.typing as npt

    from .source import Source

_SCALINGS = ("none", "linear", "yarn", "longrope")


def read_rope(
    source: Source,
    dimensions: int,
    *,
    interleaved: bool,
    base: float | None = None,
    scaled: bool = True,
    yarn_magnitude: bool = True,
) -> Rope | None:
    """The rotation of the first `dimensions` values of a head, or None for zero dimensions.

    `base` overrides the file's; `scaled=False` leaves out any scaling (local layers of Gemma 3);
    `yarn_magnitude=False` leaves out yarn's factor on cos and sin (DeepSeek puts it into the attention scale).
    """
    if not dimensions:
        return None
    base = source.floating("rope.freq_base", 10000.0) if base is None else base
    frequencies = base ** (-np.arange(0, dimensions, 2, dtype=np.float64) / dimensions)
    if not scaled:
        return Rope(frequencies, interleaved)
    frequencies /= _factors(source, dimensions // 2)
    magnitude = source.floating("rope.scaling.attn_factor", 1.0)
    kind = source.string("rope.scaling.type", "linear")
    if kind not in _SCALINGS:
        raise UnsupportedModelError(
            f"{source.key('rope.scaling.type')}: {kind!r} is not supported", hint=f"supported: {', '.join(_SCALINGS)}"
        )
    factor = source.optional_floating("rope.scaling.factor") or source.optional_floating("rope.scale_linear") or 1.0
    if kind == "linear":
        frequencies /= factor
    elif kind == "yarn":
        frequencies = _yarn(source, frequencies, base, factor)
        if yarn_magnitude:
            growth = 0.1 * math.log(max(factor, 1.0))
            damping = 1 + source.floating("rope.scaling.yarn_log_multiplier", 0.0, positive=False) * growth
            magnitude *= source.floating("rope.scaling.yarn_attn_factor", 1.0) * (1 + growth) / max(damping, 1.0)
    if not np.isfinite(frequencies).all():
        raise GGUFError(f"{source.key('rope')}: base {base} and factor {factor} give frequencies that are not finite")
    return Rope(frequencies, interleaved, magnitude)


def yarn_factor(source: Source) -> float:
    """The factor by which yarn stretches the context, 1 without yarn."""
    if source.string("rope.scaling.type", "none") != "yarn":
        return 1.0
    return max(source.optional_floating("rope.scaling.factor") or 1.0, 1.0)


def _yarn(source: Source, frequencies: npt.NDArray[np.float64], base: float, factor: float) -> npt.NDArray[np.float64]:
    """Fast dimensions keep their frequency, slow ones are divided by `factor`, with a ramp between (section 3.2)."""
    original = source.integer(
        "rope.scaling.original_context_length", source.integer("context_length", high=1 << 40), high=1 << 40
    )
    dimensions = 2 * len(frequencies)

    def dimension_of(rotations: float) -> float:
        """Which pair turns `rotations` times within the original context."""
        return dimensions * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(dimension_of(source.floating("rope.scaling.yarn_beta_fast", 32.0))))
    high = min(dimensions - 1.0, math.ceil(dimension_of(source.floating("rope.scaling.yarn_beta_slow", 1.0))))
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(0.001, high - low), 0, 1)
    kept = (1 - ramp) * source.floating("rope.scaling.yarn_ext_factor", 1.0, positive=False)
    scaled: npt.NDArray[np.float64] = frequencies * (kept + (1 - kept) / factor)
    return scaled


def _factors(source: Source, pairs: int) -> npt.NDArray[np.float64]:
    """Divisors of the frequencies: Llama 3's `rope_freqs`, or longrope's short or long ones by the run's context."""
    if source.has_tensor("rope_factors_long.weight"):
        original = source.integer("rope.scaling.original_context_length", high=1 << 40)
        long = source.vector("rope_factors_long.weight", pairs)
        short = source.vector("rope_factors_short.weight", pairs)
        tensor = long if (source.context or 0) > original else short
    elif source.has_tensor("rope_freqs.weight"):
        tensor = source.vector("rope_freqs.weight", pairs)
    else:
        return np.ones(pairs)
    factors = dequantize(tensor).astype(np.float64)
    if not np.isfinite(factors).all() or (factors <= 0).any():
        raise GGUFError(f"tensor {tensor.name}: rope factors must be positive and finite")
    return factors
