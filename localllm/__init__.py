"""Run a language model on the computer you own.

>>> import localllm
>>> with localllm.LLM("smollm2:135m") as llm:
...     print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chat_template import ChatTemplate
    from .completion import Completion
    from .errors import LocalLLMError
    from .llm import LLM
    from .sampling import SamplingParameters
    from .tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = ["LLM", "ChatTemplate", "Completion", "LocalLLMError", "SamplingParameters", "Tokenizer", "__version__"]

_PUBLIC = {
    "LLM": "localllm.llm",
    "ChatTemplate": "localllm.chat_template",
    "Completion": "localllm.completion",
    "LocalLLMError": "localllm.errors",
    "SamplingParameters": "localllm.sampling",
    "Tokenizer": "localllm.tokenizer",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that `import localllm` stays quick."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'localllm' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
