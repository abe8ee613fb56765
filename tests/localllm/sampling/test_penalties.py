"""Penalties by hand-made numbers."""

from __future__ import annotations

import numpy as np

from localllm.sampling.penalties import count_penalties, repetition_penalty


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    logits = np.array([2.0, -2.0, 3.0])
    repetition_penalty(logits, [0, 1, 1], 2.0)
    assert logits.tolist() == [1.0, -4.0, 3.0]


def test_presence_counts_once_and_frequency_each_time() -> None:
    logits = np.zeros(3)
    count_penalties(logits, [1, 1, 2], presence=0.5, frequency=0.25)
    assert logits.tolist() == [0.0, -1.0, -0.75]


def test_neutral_values_change_nothing() -> None:
    logits = np.array([1.0, -1.0])
    repetition_penalty(logits, [0, 1], 1.0)
    count_penalties(logits, [0, 1], 0.0, 0.0)
    assert logits.tolist() == [1.0, -1.0]
