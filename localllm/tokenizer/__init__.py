"""Text to ids and back, with the vocabulary that a model's file brings along."""

from .stream import StreamDecoder
from .tokenizer import Segment, Tokenizer

__all__ = ["Segment", "StreamDecoder", "Tokenizer"]
