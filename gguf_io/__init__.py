"""The GGUF file format: bounded reader, typed metadata, block layouts of every quant type, writer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "GGUFError": ".errors",
    "LocalLLMError": ".errors",
    "TruncatedGGUFError": ".errors",
    "Header": ".header",
    "TensorEntry": ".header",
    "parse_header": ".header",
    "Metadata": ".metadata",
    "outline_gguf": ".outline",
    "QuantType": ".quant_types",
    "Decomposition": ".quants",
    "decompose": ".quants",
    "dequantize": ".quants",
    "has_decomposition": ".quants",
    "is_supported": ".quants",
    "quantize": ".quants",
    "GGUFFile": ".reader",
    "open_gguf": ".reader",
    "Tensor": ".tensor",
    "MetadataValue": ".writer",
    "write_gguf": ".writer",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: the errors alone need no numpy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
