"""What the scaling model predicts against what was measured: the logs of a study.

The model's form was decided by reasoning. Every miss is predicted over measured, less 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.scaling.logs import read_logs
from hasten.scaling.predict import Fit, fit_epochs, predict

FITTED_ON = (1, 2, 4)


def validations(logs: Path) -> dict[str, Any]:
    """All comparisons, ready for JSON. logs: the folder of the 16 logs."""
    return {"logs": scaling_logs(logs)}


def scaling_logs(folder: Path) -> dict[str, Any]:
    """Fitted on 1, 2 and 4 GPUs, predicted for all; the epoch is the median of all but the first."""
    results: dict[str, Any] = {}
    logs, _ = read_logs(folder)
    for strategy in sorted({log.strategy for log in logs}):
        epochs = {log.world: seconds for log in logs if log.strategy == strategy and (seconds := log.epoch_s(None))}
        fit = fit_epochs({world: epochs[world] for world in FITTED_ON}, "weak")
        rows = [_row(fit, world, seconds) for world, seconds in epochs.items()]
        unseen = [row for row in rows if not row["fitted"]]
        results[strategy] = {
            "rows": rows,
            "worst_unseen_miss": max((abs(row["miss"]) for row in unseen), default=None),
            "unseen_in_range": f"{sum(row['in_range'] for row in unseen)} of {len(unseen)}",
            "notes": [fit.note],
        }
    return results


def _row(fit: Fit, workers: int, measured: float) -> dict[str, Any]:
    one = predict(fit, workers)
    low, high = one.epoch_range
    return {
        "workers": workers,
        "fitted": workers in FITTED_ON,
        "predicted_s": one.epoch_s,
        "range_s": (low, high),
        "measured_s": measured,
        "miss": one.epoch_s / measured - 1,
        "in_range": low <= measured <= high,
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Every row as "strategy: workers, predicted, measured, miss"."""
    return [
        f"{name}: {row['workers']} workers, predicted {row['predicted_s']:.4g} s, measured {row['measured_s']:.4g} s, "
        f"miss {100 * row['miss']:+.1f} %{' (fitted)' if row['fitted'] else ''}"
        for name, logs in result["logs"].items()
        for row in logs["rows"]
    ]
