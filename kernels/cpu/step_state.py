"""The words of a step's state: what the kernels of all threads read while they walk the operation table.

The state is one block of int64 words. Words that several threads write while they wait for each other stand alone on
their cache line (8 words). Everything else is written by the owner between steps and only read during one.
"""

from __future__ import annotations

from enum import IntEnum

from localllm.kernels.executor import MOST_THREADS

LINE = 8  # int64 words of a cache line
MAX_GROUPS = 8  # cache groups: one per distinct native window; behind them OUTPUT_GROUP
OUTPUT_GROUP = MAX_GROUPS  # the rows of the last layer's group whose output is wanted
PROFILE_KINDS = 32
MAX_QUEUES = 8  # operations between two resets whose work threads take piece by piece
GO_THREAD_BITS = 16  # the go word is epoch << GO_THREAD_BITS | threads that take part


class Word(IntEnum):
    """Index of each int64 word."""

    GO = 0  # changes when a step starts; workers wait for it
    ARRIVALS = LINE  # barrier arrivals since the start, never reset
    STOP = 2 * LINE
    THREADS = 3 * LINE  # threads of this step
    FIRST_ARRIVAL = THREADS + 1  # ARRIVALS when the step started
    OPERATIONS = THREADS + 2  # address of the operation table
    OPERATION_COUNT = THREADS + 3
    SPIN_LIMIT = THREADS + 6  # pauses before a waiting worker parks
    YIELD = THREADS + 7  # address of the operating system's yield
    ACQUIRE = THREADS + 8  # address of PyThread_acquire_lock
    RELEASE = THREADS + 9  # address of PyThread_release_lock
    ROWS = THREADS + 10  # rows of the step
    OUTPUT_ROWS = THREADS + 11
    OUTPUT_LIST = THREADS + 12  # address: int64 row numbers whose output is wanted
    OUTPUT = THREADS + 13  # address of the logits or hidden vectors
    EVICTED = THREADS + 14  # 1 if queries need a second copy for sink pages
    EXPERT_ROWS = THREADS + 15  # rows of a mixture's experts: rows of the step x chosen experts
    STEP_NUMBER = THREADS + 16  # what flags between the halves of a hybrid are raised to
    PATIENCE = THREADS + 17  # pauses after which a half gives the other one up
    GROUPS = THREADS + 4 * LINE  # GROUP_WORDS words for each cache group
    PARKED = GROUPS + (MAX_GROUPS + 1) * LINE  # a line per thread: word 0 is 1 while parked, word 1 its lock
    PROFILE = PARKED + MOST_THREADS * LINE  # cycles by operation kind, of thread 0
    QUEUES = PROFILE + PROFILE_KINDS  # a line each: how much of an operation's work has been taken
    SIZE = QUEUES + MAX_QUEUES * LINE


class GroupWord(IntEnum):
    """Words of a cache group, from Word.GROUPS + LINE * group."""

    ROWS = 0  # address: a RowPlan for every row
    ITEMS = 1  # address: work items of the decode kernel
    ITEM_COUNT = 2
    TILES = 3  # address: work items of the prefill kernel
    TILE_COUNT = 4
    MERGES = 5  # address: rows whose parts must be merged
    MERGE_COUNT = 6
    SLOTS = 7  # address: int64 slot that each row writes


def group_word(group: int, word: GroupWord) -> int:
    """Index of a word of a cache group."""
    return Word.GROUPS + LINE * group + word
