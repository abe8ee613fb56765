"""Block layouts of every quant type: to float32, to integers with scales, and (for some) from float32."""

from .dequantise import Decomposition, decompose, dequantize, has_decomposition, is_supported
from .quantise import quantize

__all__ = ["Decomposition", "decompose", "dequantize", "has_decomposition", "is_supported", "quantize"]
