"""Runs requests: one thread owns the executor, and every step carries rows of all of them."""

from .engine import Engine, EngineUsage
from .generation import ContextState, Generation
from .hooks import Constraint, RowReader
from .options import EngineOptions
from .readers import NextTokenLogprobs
from .request import Request
from .sessions import model_fingerprint

__all__ = [
    "Constraint",
    "ContextState",
    "Engine",
    "EngineOptions",
    "EngineUsage",
    "Generation",
    "NextTokenLogprobs",
    "Request",
    "RowReader",
    "model_fingerprint",
]
