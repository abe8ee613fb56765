"""Compiles and runs templates; whatever goes wrong inside becomes one error with a short text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import CodeType
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError

from localllm.errors import RequestError

from .budget import Budget, LimitError
from .environment import TemplateEnvironment, TemplateRefusal
from .messages import letters_in
from .text import Text

_LONGEST_REASON = 300


class TemplateFailure(RequestError):
    """The template failed on this conversation; another form of it may do."""


def compile_source(source: str, longest: int) -> CodeType:
    """The code of a template; RequestError gives the line of a mistake."""
    if len(source) > longest:
        raise RequestError(f"the chat template has {len(source)} characters; the limit is {longest}")
    try:
        return TemplateEnvironment(Budget(0), datetime.now).code(source)
    except TemplateSyntaxError as error:
        raise RequestError(f"the chat template is wrong in line {error.lineno}: {_short(error)}") from None
    except Exception as error:  # deep nesting ends in RecursionError, MemoryError or SyntaxError of the compiler
        raise RequestError(f"the chat template cannot be compiled: {_short(error)}") from None


def run(code: CodeType, variables: dict[str, Any], now: Callable[[], datetime]) -> Text:
    """The output for these variables.

    TemplateRefusal: `raise_exception` was called. TemplateFailure: an error in the template. RequestError: a limit.
    """
    budget = Budget(letters_in([variables["messages"], variables["tools"]]))
    try:
        return TemplateEnvironment(budget, now).run(code, variables)
    except TemplateRefusal:
        raise
    except (LimitError, RecursionError, MemoryError) as error:
        _fail(RequestError, "needs too much", error)
    except Exception as error:  # a template can raise anything that Python's operators and methods raise
        _fail(TemplateFailure, "failed", error)


def _fail(kind: type[RequestError], what: str, error: BaseException) -> NoReturn:
    raise kind(f"the chat template {what}: {_short(error)}", parameter="messages") from None


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "…"
