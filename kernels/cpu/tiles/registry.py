"""The layout of each quant type."""

from __future__ import annotations

from localllm.gguf_io import QuantType
from localllm.gguf_io.quants import is_supported
from localllm.gguf_io.quants.four_bit import FP4_LEVELS, IQ4_LEVELS
from localllm.kernels.errors import UnsupportedModelError

from . import sources, super_scales
from .float_layout import FloatLayout
from .integer_layout import IntegerLayout
from .layout import TileLayout
from .packings import EIGHT_BITS, FIVE_BITS, FOUR_BITS, SIX_BITS, THREE_BITS, TWO_BITS, BitFields, Levels
from .pieces import ROWS
from .scalings import ExponentScale, FloatScales, HalfScale
from .sources import Decomposed, NibblesAndBits, Ready


def _levels(bits: BitFields, *magnitudes: int) -> Levels:
    """A table of magnitudes of both signs."""
    return Levels(tuple(sorted({*magnitudes, *(-magnitude for magnitude in magnitudes)})), bits)


_IQ4 = Levels(tuple(int(level) for level in IQ4_LEVELS), FOUR_BITS)
_FP4 = Levels(tuple(int(level) for level in FP4_LEVELS), FOUR_BITS)
_IQ1, _IQ2 = _levels(THREE_BITS, 1, 7, 9), _levels(THREE_BITS, 8, 25, 43)
_IQ3_S, _IQ3_XXS = (_levels(FOUR_BITS, *range(1, 16, 2)), _levels(FOUR_BITS, 4, 12, 20, 28, 36, 44, 52, 62))
_TERNARY = Levels((-1, 0, 1, 2), TWO_BITS)  # 2 is in no sound file

_LAYOUTS: dict[QuantType, TileLayout] = {
    QuantType.F32: FloatLayout("f32", QuantType.F32),
    QuantType.F16: FloatLayout("f16", QuantType.F16),
    QuantType.BF16: FloatLayout("bf16", QuantType.BF16),
    QuantType.Q4_0: IntegerLayout("q4_0", FOUR_BITS, HalfScale(), Ready(2)),
    QuantType.Q4_1: IntegerLayout("q4_1", FOUR_BITS, HalfScale(has_minimum=True), Ready(4)),
    QuantType.Q5_0: IntegerLayout("q5_0", FIVE_BITS, HalfScale(), NibblesAndBits(2)),
    QuantType.Q5_1: IntegerLayout("q5_1", FIVE_BITS, HalfScale(has_minimum=True), NibblesAndBits(4)),
    QuantType.Q8_0: IntegerLayout("q8_0", EIGHT_BITS, HalfScale(), Ready(2, signed=True)),
    QuantType.Q2_K: IntegerLayout("q2_k", TWO_BITS, super_scales.Q2_K, sources.Q2_K, groups=2),
    QuantType.Q3_K: IntegerLayout("q3_k", THREE_BITS, super_scales.Q3_K, sources.Q3_K, groups=2),
    QuantType.Q4_K: IntegerLayout("q4_k", FOUR_BITS, super_scales.Q4_K, sources.Q4_K),
    QuantType.Q5_K: IntegerLayout("q5_k", FIVE_BITS, super_scales.Q4_K, sources.Q5_K),
    QuantType.Q6_K: IntegerLayout("q6_k", SIX_BITS, super_scales.Q6_K, sources.Q6_K, groups=2),
    QuantType.IQ4_NL: IntegerLayout("iq4_nl", _IQ4, HalfScale(), Ready(2)),
    QuantType.IQ4_XS: IntegerLayout("iq4_xs", _IQ4, super_scales.IQ4_XS, Ready(8)),
    QuantType.MXFP4: IntegerLayout("mxfp4", _FP4, ExponentScale(), Ready(1)),
    QuantType.NVFP4: IntegerLayout("nvfp4", _FP4, FloatScales(2), Decomposed(), groups=2),
    QuantType.IQ2_XXS: IntegerLayout("iq2_xxs", _IQ2, FloatScales(1), Decomposed()),
    QuantType.IQ2_XS: IntegerLayout("iq2_xs", _IQ2, FloatScales(2), Decomposed(), groups=2),
    QuantType.IQ2_S: IntegerLayout("iq2_s", _IQ2, FloatScales(2), Decomposed(), groups=2),
    QuantType.IQ3_XXS: IntegerLayout("iq3_xxs", _IQ3_XXS, FloatScales(1), Decomposed()),
    QuantType.IQ3_S: IntegerLayout("iq3_s", _IQ3_S, FloatScales(1), Decomposed()),
    QuantType.IQ1_S: IntegerLayout("iq1_s", _IQ1, FloatScales(1), Decomposed()),
    QuantType.IQ1_M: IntegerLayout("iq1_m", _IQ1, FloatScales(2), Decomposed(), groups=2),
    QuantType.TQ1_0: IntegerLayout("tq1_0", _TERNARY, FloatScales(1, half=True), Decomposed()),
    QuantType.TQ2_0: IntegerLayout("tq2_0", _TERNARY, FloatScales(1, half=True), Decomposed()),
}


def layout_for(quant_type: QuantType) -> TileLayout:
    """The layout for tensors of this type; raises UnsupportedModelError for types that no model file should hold."""
    layout = _LAYOUTS.get(quant_type)
    if layout is not None:
        return layout
    if is_supported(quant_type):
        return _LAYOUTS[QuantType.F32]
    raise UnsupportedModelError(
        f"tensors of type {quant_type.name} are not supported",
        hint="use a file of another quantisation, for example Q4_K_M or Q8_0",
    )


def rewriting(quant_type: QuantType) -> str | None:
    """How a type's weights are held when not by the codes of the file, in words; None when by these."""
    layout = layout_for(quant_type)
    if isinstance(layout, IntegerLayout) and isinstance(layout.source, Decomposed):
        bits = layout.tile_bytes(256) / (ROWS * 256 // 8)
        return f"is repacked without loss as integers times scales ({bits:.1f} bits a weight)"
    if isinstance(layout, FloatLayout) and layout.quant_type is not quant_type:
        return f"is dequantised to {layout.quant_type.name}"
    return None
