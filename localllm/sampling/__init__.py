"""From logits to a token: parameters, the chain of samplers, penalties."""

from .parameters import SamplingParameters

__all__ = ["SamplingParameters"]
