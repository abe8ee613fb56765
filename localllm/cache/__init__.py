"""Which keys and values stay, where they lie, and who shares them: page tables over pools of pages, integers only."""

from .cache import CacheUsage, KVCache, PoolSizes
from .heavy_hitters import HeavyHitterPolicy
from .policy import POLICIES, ContextPolicy, Policy
from .selective import parse_kv_policy
from .sequence import CachedSequence
from .sink_window import LEAST_WINDOW
from .sizing import bytes_of_layers, pool_sizes
from .tables import ScheduledRows, build_step

__all__ = [
    "LEAST_WINDOW",
    "POLICIES",
    "CacheUsage",
    "CachedSequence",
    "ContextPolicy",
    "HeavyHitterPolicy",
    "KVCache",
    "Policy",
    "PoolSizes",
    "ScheduledRows",
    "build_step",
    "bytes_of_layers",
    "parse_kv_policy",
    "pool_sizes",
]
