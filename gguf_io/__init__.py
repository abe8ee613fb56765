"""The GGUF file format: bounded reader, typed metadata, block layouts of every quant type, writer."""

from .errors import GGUFError, LocalLLMError, TruncatedGGUFError
from .header import Header, TensorEntry, parse_header
from .metadata import Metadata
from .outline import outline_gguf
from .quant_types import QuantType
from .quants import Decomposition, decompose, dequantize, has_decomposition, is_supported, quantize
from .reader import GGUFFile, open_gguf
from .tensor import Tensor
from .writer import MetadataValue, write_gguf

__all__ = [
    "Decomposition",
    "GGUFError",
    "GGUFFile",
    "Header",
    "LocalLLMError",
    "Metadata",
    "MetadataValue",
    "QuantType",
    "Tensor",
    "TensorEntry",
    "TruncatedGGUFError",
    "decompose",
    "dequantize",
    "has_decomposition",
    "is_supported",
    "open_gguf",
    "outline_gguf",
    "parse_header",
    "quantize",
    "write_gguf",
]
