"""From logits to a token: parameters, the chain of samplers, penalties."""

from .dry import breaker_ids
from .parameters import MAX_SEED, SamplingParameters, parameters_of
from .sampler import Sample, Sampler, log_probabilities

__all__ = ["MAX_SEED", "Sample", "Sampler", "SamplingParameters", "breaker_ids", "log_probabilities", "parameters_of"]
