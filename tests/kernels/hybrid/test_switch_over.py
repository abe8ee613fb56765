"""From how many rows on streaming pays: the crossing of two costs, found with few measurements."""

from __future__ import annotations

import pytest

from localllm.kernels.hybrid.switch_over import StreamCost, switch_over


@pytest.mark.parametrize(("copy", "row", "slope"), [(0.05, 1e-5, 1.8e-3), (0.001, 1e-5, 1.8e-3), (0.5, 1e-4, 2.0e-3)])
def test_the_crossing_is_where_the_cpu_takes_longer(copy: float, row: float, slope: float) -> None:
    measured: list[int] = []

    def cpu(rows: int) -> float:
        measured.append(rows)
        return 1e-3 + slope * rows

    cost = StreamCost(copy, row)
    found = switch_over(cost, cpu, 512)
    assert found is not None
    assert 1e-3 + slope * found > cost.seconds(found)
    assert found == 8 or 1e-3 + slope * (found - 1) <= cost.seconds(found - 1)
    assert max(measured) < 4 * max(found, 8)


def test_a_slow_link_or_device_never_pays() -> None:
    assert switch_over(StreamCost(10.0, 0.0), lambda rows: 1e-3 * rows, 512) is None
    assert switch_over(StreamCost(0.0, 2e-3), lambda rows: 1e-3 * rows, 512) is None
    assert switch_over(StreamCost(0.1, 0.0), lambda rows: 1e-3 * rows, 300) == 101


def test_experts_that_are_not_hit_cost_nothing() -> None:
    cost = StreamCost(1.0, 0.0, hit=1 / 16)
    assert cost.seconds(1) == pytest.approx(1 / 16)
    assert cost.seconds(400) == pytest.approx(1.0)
