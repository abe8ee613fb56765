"""Markdown that grows: text comes in pieces, rows for a screen come out, and the cost of a piece stays bounded."""

from .document import MarkdownDocument, warm_up
from .row import Row

__all__ = ["MarkdownDocument", "Row", "warm_up"]
