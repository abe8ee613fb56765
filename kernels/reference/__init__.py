"""The reference executor: any model in plain numpy, slow and readable. Every other executor is tested against it.

Read `executor.py` first (a step from tokens to logits), then `attention.py`, `feed_forward.py` and `cache.py`.
"""

from .executor import ReferenceExecutor

__all__ = ["ReferenceExecutor"]
