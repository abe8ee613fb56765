"""A gemv one of whose programs meets the CPU beside the others: it sends them rows, or waits for theirs.

Kernels of their own for that would cost each layer two more launches, and hold up what does not need the CPU.
"""

import triton
import triton.language as tl

from .common import start_early, wait_for_inputs
from .gemv import outputs_of
from .meeting import copy_row, meet, send_rows


@triton.jit(do_not_specialize=["mark"])
def gemv_meeting(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, x_facts, square_sums, eps, y, bias,
    bias_b, residual, gain, square_sums_out, factor, planes, o_quants, o_facts, natural, short,
    source, target, gates, out_gates, flag, number, stamp, meeting_rows, failed, mark, patience,
    N: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr, END: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, NORM_PARTS: tl.constexpr, STRIDE: tl.constexpr,
    OUT_KP: tl.constexpr, FORMATS: tl.constexpr, SHORT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    SENDS: tl.constexpr, WIDTH: tl.constexpr, GATES: tl.constexpr, GATE_STEP: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `gemv`, but program 0 copies `meeting_rows` rows of WIDTH values from `source` to `target`.

    SENDS: to the CPU, as `meeting.send_rows`; else from it, when its flag is raised (`meeting.meet`).
    """
    start_early(PDL)
    pid = tl.program_id(0)
    if pid == 0:
        wait_for_inputs(PDL)
        if SENDS:
            send_rows(
                source, target, gates, out_gates, flag, number, stamp, meeting_rows, WIDTH, GATES, GATE_STEP, BLOCK
            )
        else:
            meet(flag, failed, number, mark, patience, stamp)
            for m in range(meeting_rows):
                copy_row(source + m * WIDTH, target + m * WIDTH, WIDTH, BLOCK)
    else:
        outputs_of(
            pid - 1, tl.num_programs(0) - 1, quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x,
            x_facts, square_sums, eps, y, bias, bias_b, residual, gain, square_sums_out, factor, planes,
            o_quants, o_facts, natural, short, N, K, KP, M, U, W, G, BITS, FORM, BYTES, END, HAS_BIAS,
            ACTIVATION, NORM_PARTS, STRIDE, OUT_KP, FORMATS, SHORT_SCALE, SOFTCAP, PDL,
        )
