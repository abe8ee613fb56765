"""The command line: `localllm COMMAND`. Every command is a module of its own, imported when it is used."""

from .main import main

__all__ = ["main"]
