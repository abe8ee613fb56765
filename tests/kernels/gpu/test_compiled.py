"""What Triton makes of kernels for a card, without one: compiled in a process of its own, which interprets nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

COMPILE = """
import re
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from localllm.kernels.gpu.device import Gpu
from localllm.kernels.gpu.programs import gemv

kernel = gemv.gemv


def look(bits, form, exact):
    weights = ("quants", "high", "scales", "supers", "quants_b", "high_b", "scales_b", "supers_b")
    types = dict.fromkeys(weights, "*fp16" if bits == 16 else "*i32")
    types |= {"eps": "fp32", "factor": "fp32", "short": "*fp16", "o_quants": "*i8"}
    types["x"] = "*fp32" if exact else "*i32"
    constants = dict(
        N=64, K=1024, KP=1024, M=2, U=32, W=2, G=2, BITS=bits, FORM=form, BYTES=not exact, END=gemv.RESIDUAL.value,
        HAS_BIAS=False, ACTIVATION=0, NORM_PARTS=0, STRIDE=0, OUT_KP=64, FORMATS=1 if exact else 2, SHORT_SCALE=1.0,
        SOFTCAP=0.0, PDL=True,
    )
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    given = {(names.index(name),): value for name, value in constants.items()}
    options = Gpu(torch.device("cpu"), "", False, (9, 0), 132, 0.0, 0.0, 227 << 10).early(2)
    del options["PDL"]
    made = compile(ASTSource(kernel, signature, given, aligned), target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\\w+) = #ttg\\.blocked<\\{(.*)\\}>$", text, re.MULTILINE))
    for line in text.splitlines():
        if loaded := re.search(r" tt\\.load .*tensor<(\\d+x\\d+x[\\dx]+)!tt\\.ptr<\\w+>, (#\\w+)>", line):
            lanes = re.search(r"threadsPerWarp = \\[(\\d+)", layouts[loaded[2]])[1]
            warps = re.search(r"warpsPerCTA = \\[1, (\\d+)", layouts[loaded[2]])[1]
            print(loaded[1], lanes, warps)


for case in sys.argv[1:]:
    look(*map(int, case.split()))
"""


CASES = ("4 0 0", "4 0 1", "4 2 0", "5 0 0", "6 3 0", "8 0 1", "16 0 1")  # bits, form, exact products


def test_lanes_run_along_the_units_of_a_row_and_warps_over_rows(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILE, *CASES],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loads = [line.split() for line in done.stdout.splitlines()]
    assert sum(shape.count("x") == 5 for shape, *_ in loads) >= len(CASES)
    assert {(lanes, warps) for _, lanes, warps in loads} == {("32", "2")}
