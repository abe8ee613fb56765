"""Numbers and sizes of the quant types against the published package."""

from __future__ import annotations

import gguf
import pytest

from localllm.gguf_io import QuantType


@pytest.mark.parametrize("quant_type", QuantType)
def test_numbers_and_sizes_are_those_of_the_published_package(quant_type: QuantType) -> None:
    theirs = gguf.GGMLQuantizationType(int(quant_type))
    assert theirs.name == quant_type.name
    assert gguf.GGML_QUANT_SIZES[theirs] == (quant_type.block_size, quant_type.type_size)
