"""Which instructions the kernels may use: chosen at run time from the features of the host, overridable for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from localllm.kernels.errors import ExecutionError


class DotProduct(Enum):
    """How four unsigned by signed bytes are multiplied and added into each 32-bit lane."""

    VNNI_512 = "vpdpbusd on 512 bits"
    VNNI_256 = "vpdpbusd on 256 bits"
    MADDUBS = "pmaddubsw on 256 bits"
    PLAIN = "shifts and multiplies"


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set level. `token_block`: how many token rows a matrix kernel should hold in registers.

    `row_ahead`: bytes ahead of a product of one row at which a kernel asks for weights itself; 0: it does not.
    """

    name: str
    dot_product: DotProduct
    token_block: int
    half_conversion: bool  # the hardware converts float16 to and from float32
    fused_multiply_add: bool
    byte_shuffle: bool  # AVX2's pshufb (16-entry tables in a register) and psadbw
    x86: bool
    row_ahead: int = 0


AVX512_VNNI = Isa("avx512vnni", DotProduct.VNNI_512, 8, True, True, True, True)
AVX_VNNI = Isa("avxvnni", DotProduct.VNNI_256, 4, True, True, True, True)
AVX2 = Isa("avx2", DotProduct.MADDUBS, 4, True, True, True, True)
PORTABLE = Isa("portable", DotProduct.PLAIN, 4, False, False, False, True)
PORTABLE_ARM = Isa("portable-arm", DotProduct.PLAIN, 4, True, True, False, False)
PORTABLE_OTHER = Isa("portable-other", DotProduct.PLAIN, 4, False, False, False, False)

ROW_AHEAD = 4096
_READ_AHEAD = ("znver", "bdver", "btver", "x86-64", "generic")  # AMD's as LLVM names them, and names that say nothing


def isas_of(triple: str, features: frozenset[str]) -> tuple[Isa, ...]:
    """The levels that a machine of this LLVM triple and these feature names can run, best first."""
    architecture = triple.partition("-")[0]
    if architecture in ("aarch64", "arm64"):
        return (PORTABLE_ARM,)
    if architecture != "x86_64":
        return (PORTABLE_OTHER,)
    levels = []
    if {"avx2", "fma", "f16c"} <= features:
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"} <= features:
            levels.append(AVX512_VNNI)
        if "avxvnni" in features or {"avx512vl", "avx512vnni"} <= features:
            levels.append(AVX_VNNI)
        levels.append(AVX2)
    return (*levels, PORTABLE)


def for_processor(isa: Isa, processor: str) -> Isa:
    """The level as a processor of this LLVM name wants its kernels.

    Multiplying one row, a core of a server has 256 to 512 instructions under way, which is less than 4 KiB of weights.
    A Xeon's sixteen cores read 70% of what they read without multiplying, and 92% when kernels ask for the lines 4 to 8
    KiB ahead. On an EPYC what its hardware fetches is as fast, and the same requests cost 10 to 30%.
    """
    wants = isa.dot_product is DotProduct.VNNI_512 and not processor.startswith(_READ_AHEAD)
    return replace(isa, row_ahead=ROW_AHEAD) if wants else isa


def available_isas() -> tuple[Isa, ...]:
    """The levels that this process can run, best first; asks Numba, so a user's NUMBA_CPU_* settings are respected."""
    from numba.core.registry import cpu_target

    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    levels = isas_of(triple, frozenset(name[1:] for name in features.split(",") if name.startswith("+")))
    return tuple(for_processor(isa, processor) for isa in levels)


def choose_isa(name: str | None = None) -> Isa:
    """The best level of this host, or the one called `name`; raises ExecutionError if the host cannot run it."""
    levels = available_isas()
    if name is None:
        return levels[0]
    for isa in levels:
        if isa.name == name:
            return isa
    known = ", ".join(isa.name for isa in levels)
    raise ExecutionError(f"this CPU cannot run kernels for {name}", hint=f"it can run: {known}")
