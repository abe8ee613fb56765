"""What a model file says about itself."""

from __future__ import annotations

from pathlib import Path

from localllm.store.describe import describe


def test_types_that_the_cpu_rewrites_say_so(shared_fixtures: Path) -> None:
    folder = shared_fixtures / "golden" / "quant"
    shares = {share.type_name: share.rewriting for share in describe(folder / "llama_iq2_xs.gguf").quants}
    assert shares == {
        "IQ2_XS": "is repacked without loss as integers times scales (5.0 bits a weight)",
        "F32": None,
    }
    assert all(share.rewriting is None for share in describe(folder / "mix_q4_k_m_like.gguf").quants)
