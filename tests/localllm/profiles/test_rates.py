"""A profile beside the model says what is hot; one of another model is passed over with a line in the log."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from localllm.profiles import load_profile, profile_path, save_profile
from localllm.profiles.facts_file import fingerprint
from localllm.profiles.rates import measured_rates
from localllm.profiles.record import ActivationProfile, LayerProfile


def test_rates_come_from_the_profile_beside_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    assert measured_rates(model, 2) == ()
    counts = LayerProfile("neurons", np.array([[1, 0, 5], [3, 0, 5]], np.int64))
    save_profile(ActivationProfile(fingerprint(model), (5, 5), {1: counts}), profile_path(model))
    assert load_profile(profile_path(model), model).token_count == 10
    none, rates = measured_rates(model, 2)
    assert none is None
    assert rates is not None
    np.testing.assert_allclose(rates, [0.4, 0, 1])
    model.write_bytes(b"GGUF" + bytes(101))
    assert measured_rates(model, 2) == ()
    assert "loaded without a profile" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_the_place_of_a_profile_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    os.mkfifo(profile_path(model))
    assert measured_rates(model, 2) == ()
    assert "is not a file" in caplog.text
