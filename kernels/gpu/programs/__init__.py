"""Triton programs: what runs on the GPU, and through Triton's interpreter on a machine without one.

These files follow Triton's dialect of Python: no annotations but `tl.constexpr`, module constants are constexpr.
Letters follow the papers: M rows (tokens), N outputs, K inputs, R outputs a program. The layouts are in `layouts.py`.
"""
