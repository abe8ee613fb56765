"""Which keys and values stay, where they lie, and who shares them: page tables over pools of pages, integers only."""

from .cache import CacheUsage, KVCache, PoolSizes
from .policy import POLICIES, ContextPolicy, Policy
from .sequence import CachedSequence
from .sizing import bytes_of_layers, pool_sizes
from .tables import ScheduledRows, build_step

__all__ = [
    "POLICIES",
    "CacheUsage",
    "CachedSequence",
    "ContextPolicy",
    "KVCache",
    "Policy",
    "PoolSizes",
    "ScheduledRows",
    "build_step",
    "bytes_of_layers",
    "pool_sizes",
]
