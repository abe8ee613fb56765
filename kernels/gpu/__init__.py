"""The GPU executor: Triton kernels on packed weights, torch for memory, streams and graphs.

Loaded late: importing this package loads neither torch nor triton. Read `executor.py` (a step), `step_program.py` (the
launches of a step), then the blocks; `programs/` holds the kernels, `families.py` and `packing.py` the layouts.
"""
