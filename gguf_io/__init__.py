"""The GGUF file format: bounded reader, typed metadata, block layouts of every quant type, writer."""

from .errors import GGUFError, LocalLLMError
from .quant_types import QuantType
from .tensor import Tensor

__all__ = ["GGUFError", "LocalLLMError", "QuantType", "Tensor"]
