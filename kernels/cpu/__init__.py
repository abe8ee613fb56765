"""The CPU executor: SIMD kernels emitted as LLVM IR through Numba, over weights repacked into tiles of 16 rows."""
