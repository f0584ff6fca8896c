from __future__ import annotations

import pytest

from benchmarks.scales import imbalance


def test_dealing_by_cost_balances_what_counting_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(imbalance, "SEEDS", 3)
    measured = imbalance.measure(None)
    assert "left out" in capsys.readouterr().out
    assert list(measured["sets"]) == ["skewed"]
    for workers, share in measured["sets"]["skewed"].items():
        others = min(value for name, value in share.items() if name != "in order")
        assert share["in order"] < others, workers
        assert others >= 0.95
