"""Results of arms as tests make them up."""

from __future__ import annotations

from typing import Any


def run(*points: tuple[float, float | None], stopped: str = "target", cap: float = 500.0) -> dict[str, Any]:
    """A result with the given (seconds, Dice) points."""
    dice = [value for _, value in points if value is not None]
    return {
        "curve": [
            {"seconds": seconds, "dice": value, "iou": value, "epoch": seconds / 10} for seconds, value in points
        ],
        "stopped": stopped,
        "settings": {"max_seconds": cap, "metric": "dice"},
        "utilisation": {"cpu": 90.0},
        "steps": 12,
        "best": max(dice, default=None),
        "seconds_per_epoch": [2.0, 9.0, 3.0],
    }


CUT_OFF = {"stopped": "max_seconds", "cap": 100.0}
