from __future__ import annotations

import pytest

from benchmarks.scales.efficiency import ratios


def test_speedups_are_of_the_rounds() -> None:
    epochs = {
        "one_1_thread": [10.0, 11.0, 10.0, 20.0, 10.0],
        "one_2_threads": [8.0, 8.8, 8.0, 16.0, 8.0],
        "two_1_thread": [6.25, 6.875, 6.25, 12.5, 6.25],
    }
    result = ratios(epochs)
    assert result["speedups"]["two_processes"]["speedup"] == pytest.approx(1.6)
    assert result["speedups"]["two_processes"]["verdict"] == "faster"
    assert result["speedups"]["processes_over_threads"]["speedup"] == pytest.approx(1.28)
    assert result["efficiency"] == {"two_processes": pytest.approx(0.8), "two_threads": pytest.approx(0.625)}
    assert result["median_epoch_s"]["one_1_thread"] == 10.0
