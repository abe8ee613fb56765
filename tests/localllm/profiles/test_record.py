"""Profiles as numbers and as untrusted files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localllm.errors import ConfigurationError
from localllm.profiles import ActivationProfile, LayerProfile, load_profile, profile_path, save_profile
from localllm.profiles.curve import text_curve
from localllm.profiles.facts_file import fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "some.Q4_0.gguf"
    path.write_bytes(np.random.default_rng(1).bytes(200_000))
    return path


def _profile(model: Path) -> ActivationProfile:
    neurons = np.array([[10, 0, 5, 0, 0, 0, 0, 0, 0, 0], [10, 2, 4, 0, 0, 0, 0, 0, 0, 4]])
    experts = np.array([[10, 0], [3, 7]])
    layers = {1: LayerProfile("neurons", neurons), 4: LayerProfile("experts", experts)}
    return ActivationProfile(fingerprint(model), (10, 10), layers)


def test_numbers(model: Path) -> None:
    profile = _profile(model)
    frequency = profile.frequency(1)
    assert frequency is not None
    assert frequency[0] == 1.0
    assert profile.frequency(0) is None
    assert profile.sparsity(1) == pytest.approx(1 - 35 / 200)
    assert profile.sparsity(0) == 0.0
    assert profile.hot_share(0.8) == pytest.approx(4 / 12)  # 20 + 13 + 9 + 7 of 55
    assert profile.coverage(0.2) == pytest.approx((14 / 20 + 0.0) / 2)
    assert profile.coverage(1.0) == 1.0
    assert any("100%" in line for line in text_curve(profile))


def test_a_file_gives_the_same_profile(model: Path) -> None:
    path = profile_path(model)
    assert path.name == "some.Q4_0.profile"
    save_profile(_profile(model), path)
    loaded = load_profile(path, model)
    assert loaded.tokens == (10, 10)
    assert {layer: one.kind for layer, one in loaded.layers.items()} == {1: "neurons", 4: "experts"}
    np.testing.assert_array_equal(loaded.layers[1].counts, _profile(model).layers[1].counts)


def test_a_profile_of_another_file_is_refused(model: Path, tmp_path: Path) -> None:
    save_profile(_profile(model), profile_path(model))
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ConfigurationError, match="of another file"):
        load_profile(profile_path(model), model)


def test_damaged_files_are_refused(model: Path) -> None:
    path = profile_path(model)
    save_profile(_profile(model), path)
    whole = path.read_bytes()
    random = np.random.default_rng(3)
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigurationError, match="damaged"):
            load_profile(path, model)
    for _ in range(100):
        content = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            content[at] ^= int(random.integers(1, 256))
        path.write_bytes(content)
        try:
            profile = load_profile(path, model)
        except ConfigurationError:
            continue
        assert profile.layers[1].counts.shape[0] == 2


def test_impossible_counts_and_pickles_are_refused(model: Path) -> None:
    path = profile_path(model)
    profile = _profile(model)
    save_profile(ActivationProfile(profile.model, (2, 2), profile.layers), path)
    with pytest.raises(ConfigurationError, match="damaged"):
        load_profile(path, model)
    with path.open("wb") as file:
        np.savez(file, head=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ConfigurationError, match="damaged"):
        load_profile(path, model)
