from __future__ import annotations

from pathlib import Path

from hasten.cli.train import _summary_lines


def test_what_a_run_doubts_of_itself_is_said_in_the_terminal() -> None:
    summary = {
        "best": {"metric": "mean_dice", "value": 0.03, "step": 3},
        "target": {"value": None},
        "earlier_seconds": 0.0,
        "seconds": {"total": 60.0},
        "wait_share": 0.0,
        "doubts": ["3 steps are too few", "the best Dice is 0.03"],
    }
    lines = _summary_lines(summary, Path("run"), None)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("note")] == summary["doubts"]
    assert not any(line.startswith("note") for line in _summary_lines({**summary, "doubts": []}, Path("run"), None))
