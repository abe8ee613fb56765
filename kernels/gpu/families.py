"""The forms that packed weights take in GPU memory, and which quant type becomes which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from localllm.gguf_io import QuantType


class Form(IntEnum):
    """How scales are stored. A pair is 64 columns: two blocks of 32, one in the low and one in the high nibbles."""

    HALF = 0  # one word a pair: the float16 scales of its two blocks; value = scale * (quant - zero)
    HALF_MINIMUM = 1  # two words a pair: scales, minimums; value = scale * quant + minimum
    SUPER = 2  # one word a pair: (scale, minimum) bytes of two blocks; one word per 256: float16 factors of both
    SUPER_SIGNED = 3  # one word a pair: four int8 scales of 16 columns; one word per 256: their float16 factor
    GROUP = 4  # eight words a pair: float32 scales and minimums of its four groups of 16 columns
    NONE = 5  # plain numbers


@dataclass(frozen=True, slots=True)
class Family:
    """What a packed matrix looks like: `bits` of a quant (16 and 32: plain floats) and the form of its scales.

    `exact`: the packed form gives the file's values bit for bit.
    """

    bits: int
    form: Form
    brain: bool = False  # 16 bits of bfloat16
    exact: bool = True

    @property
    def dense(self) -> bool:
        """Plain floats, without scales."""
        return self.form is Form.NONE

    @property
    def high_words(self) -> int:
        """int32 words a pair and row that hold the bits above the lowest four."""
        return {5: 2, 6: 4}.get(self.bits, 0)

    @property
    def scale_words(self) -> int:
        """int32 words of scales a pair and row."""
        return {Form.HALF_MINIMUM: 2, Form.GROUP: 8, Form.NONE: 0}.get(self.form, 1)

    @property
    def has_supers(self) -> bool:
        """Whether there is one more word per 256 columns."""
        return self.form in (Form.SUPER, Form.SUPER_SIGNED)

    @property
    def zero(self) -> int:
        """The quant that means 0, where there is no minimum."""
        return {(4, Form.HALF): 8, (5, Form.HALF): 16, (6, Form.SUPER_SIGNED): 32}.get((self.bits, self.form), 0)


F32 = Family(32, Form.NONE)
F16 = Family(16, Form.NONE)
BF16 = Family(16, Form.NONE, brain=True)
GROUPED = Family(8, Form.GROUP)

_FAMILIES: dict[QuantType, Family] = {
    QuantType.F32: F32,
    QuantType.F16: F16,
    QuantType.BF16: BF16,
    QuantType.Q4_0: Family(4, Form.HALF),
    QuantType.Q4_1: Family(4, Form.HALF_MINIMUM),
    QuantType.Q5_0: Family(5, Form.HALF),
    QuantType.Q5_1: Family(5, Form.HALF_MINIMUM),
    QuantType.Q8_0: Family(8, Form.HALF),
    QuantType.Q4_K: Family(4, Form.SUPER),
    QuantType.Q5_K: Family(5, Form.SUPER),
    QuantType.Q6_K: Family(6, Form.SUPER_SIGNED),
}


def family_of(quant_type: QuantType) -> Family:
    """The packed form of a quant type; types without a form of their own become int8 with a scale per 16 columns."""
    return _FAMILIES.get(quant_type, GROUPED)


def has_own_form(quant_type: QuantType) -> bool:
    """Whether the GPU keeps this type at its size in the file."""
    return quant_type in _FAMILIES
