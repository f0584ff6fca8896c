"""The figures of a scaling study as a table, and as CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hasten.observe.rundir import write_json, write_text
from hasten.report import words
from hasten.report.model import Table
from hasten.study.scale.analyse import Analysis
from hasten.study.scale.series import Point, Spread

JSON, CSV = "scaling.json", "scaling.csv"


def table_of(analysis: Analysis, *, spreads: bool = True) -> Table:
    """A row for each strategy and count of workers; a column that nobody fills is left out.

    spreads: with the least and the largest of the runs.
    """
    columns: list[tuple[str, Callable[[Point], str | None]]] = [
        ("Strategy", lambda point: point.strategy),
        ("Workers", lambda point: str(point.world)),
        ("Runs", lambda point: str(len(point.seeds)) if any(len(p.seeds) > 1 for p in analysis.points) else None),
        ("Epoch", lambda point: _times(point.epoch_s, spreads)),
        ("Speed-up", lambda point: _factor(point.speedup)),
        ("Ideal", lambda point: f"{point.ideal:g}x"),
        ("Efficiency", lambda point: None if point.efficiency is None else words.share(point.efficiency)),
        ("Samples/s", lambda point: None if point.samples_per_s is None else words.number(point.samples_per_s)),
        ("Total", lambda point: None if point.total_s is None else words.duration(point.total_s.median)),
        ("Total speed-up", lambda point: _factor(point.total_speedup)),
        (f"To {analysis.metric} {analysis.target or 0:g}", _target),
        (analysis.metric[:1].upper() + analysis.metric[1:], lambda point: _quality(point.metric, spreads)),
    ]
    cells = [[text_of(point) for point in analysis.points] for _, text_of in columns]
    filled = [place for place, column in enumerate(cells) if any(column)]
    names = tuple(columns[place][0] for place in filled)
    rows = zip(*(cells[place] for place in filled), strict=True)
    texts = tuple(tuple(cell or words.DASH for cell in row) for row in rows)
    return Table(names, texts, numeric=tuple(range(1, len(names))))


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Everything but the curves."""
    names = ("target", "drop", "metric", "verdicts", "warnings", "notes", "points")
    return {
        "name": analysis.name,
        "baseline": analysis.baseline,
        "epoch": analysis.epoch if analysis.epoch is not None else "median",
        **{name: getattr(analysis, name) for name in names},
        "runs": [
            {
                **{name: getattr(log, name) for name in ("strategy", "world", "seed", "mode", "source")},
                "epoch_s": log.epoch_s(analysis.epoch),
                "total_s": log.total_s,
                "metric": log.metric,
                "target_s": None if analysis.target is None else log.time_to(analysis.target),
                "learning_rate": log.rate,
                "machine": log.machine,
            }
            for log in analysis.logs
        ],
    }


def as_csv(analysis: Analysis) -> str:
    """A row for each strategy and count of workers, in plain numbers; what isn't known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    plain = ("ideal", "speedup", "efficiency", "total_speedup", "samples_per_s", "target_s", "reached", "fall")
    spreads = [(name, part) for name in ("epoch_s", "total_s", "metric") for part in ("median", "low", "high")]
    writer.writerow(["strategy", "workers", "runs", *plain, *(f"{name}_{part}" for name, part in spreads)])
    for point in analysis.points:
        values = [getattr(point, name) for name in plain]
        values += [getattr(getattr(point, name), part, None) for name, part in spreads]
        writer.writerow([point.strategy, point.world, len(point.seeds), *values])
    return text.getvalue()


def write_tables(analysis: Analysis, out: Path) -> None:
    """Write scaling.json and scaling.csv into the folder `out`. OSError where it can't be written."""
    write_json(out / JSON, as_json(analysis))
    write_text(out / CSV, as_csv(analysis))


def _times(times: Spread | None, spreads: bool) -> str | None:
    if times is None:
        return None
    return times.seconds(spread=spreads).replace(" s", f"{words.NBSP}s", 1)


def _factor(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}x"


def _target(point: Point) -> str | None:
    if point.reached is None:
        return None
    if point.target_s is None:
        return f"{point.reached} of {len(point.seeds)} reached it"
    return words.duration(point.target_s)


def _quality(metric: Spread | None, spreads: bool) -> str | None:
    if metric is None:
        return None
    spread = f" ({metric.low:.3f} to {metric.high:.3f})" if spreads and len(metric.values) > 1 else ""
    return f"{metric.median:.3f}{spread}"
