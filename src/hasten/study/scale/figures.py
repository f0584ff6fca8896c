"""The curves of a scaling study as SVG, and their legends."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hasten.report.figures import Graph, Line, color, curves, graphs
from hasten.report.view import Key
from hasten.study.scale.analyse import Analysis
from hasten.study.scale.log import Log
from hasten.study.scale.series import Point, Series, workers
from hasten.study.scale.verdict import LEAST_EFFICIENCY

_WORKERS = "Workers"
_CLOSEST = 24
"""Parts of the axis that two of its labels need between them."""


def strategy_keys(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(name=one.strategy, color=color(place)) for place, one in enumerate(analysis.series))


def speedups(analysis: Analysis) -> str:
    """Speed-up over workers with the dashed line of the ideal."""
    worlds = _worlds(analysis)
    ideal = Graph(x=[0, worlds[-1]], y=[0, worlds[-1] / analysis.baseline], color="--muted", width=1.2, dashed=True)
    lines = [_over_workers(one, place, "speedup") for place, one in enumerate(analysis.series)]
    return graphs(
        [ideal, *lines],
        x_label=_WORKERS,
        id_prefix="speedup",
        describe="Speed-up of an epoch over the count of workers",
        bounds=(0, None),
        ticks=_ticks(worlds),
    )


def efficiencies(analysis: Analysis) -> str:
    """Efficiency over workers with a dashed line at the level of the verdict."""
    lines = [_over_workers(one, place, "efficiency") for place, one in enumerate(analysis.series)]
    return graphs(
        lines,
        x_label=_WORKERS,
        id_prefix="efficiency",
        describe="Efficiency over the count of workers",
        level=LEAST_EFFICIENCY,
        bounds=(0, None),
        ticks=_ticks(_worlds(analysis)),
    )


def qualities(analysis: Analysis) -> str:
    """The metric over workers, each count with a bar from its worst run to its best; empty where none is known."""
    lines = []
    for place, one in enumerate(analysis.series):
        measured = [(point.world, point.metric) for point in one.points if point.metric is not None]
        spread = [(metric.low, metric.high) for _, metric in measured]
        lines.append(
            Graph(
                x=[world for world, _ in measured],
                y=[metric.median for _, metric in measured],
                color=color(place),
                spread=spread if any(low < high for low, high in spread) else (),
            )
        )
    if not any(line.x for line in lines):
        return ""
    return graphs(
        lines,
        x_label=_WORKERS,
        id_prefix="metric",
        describe=f"{analysis.metric} over the count of workers",
        ticks=_ticks(_worlds(analysis)),
    )


def world_keys(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(name=workers(world), color=color(place)) for place, world in enumerate(_worlds(analysis)))


def losses(analysis: Analysis) -> tuple[str, str]:
    """Loss over epochs and over time, each a row of figures side by side, one a strategy; empty if there is none.

    Of several seeds the first is drawn. All figures of a row have the same scale.
    """
    by_strategy = {one.strategy: _first_seeds(one) for one in analysis.series}
    values = [loss for logs in by_strategy.values() for log in logs for _, _, loss in log.losses]
    if not values:
        return "", ""
    log = min(values) > 0 and max(values) > 20 * min(values)
    bounds = (min(values) * 0.8, max(values) * 1.25) if log else (min(0.0, *values), max(values) * 1.05)
    places = {world: place for place, world in enumerate(_worlds(analysis))}
    by_epoch, by_time = [], []
    for number, (strategy, logs) in enumerate(by_strategy.items()):
        describe = f"Loss of {escape(strategy)} for each count of workers"
        lines = [
            Graph(x=[epoch for epoch, _, _ in one.losses], y=_values(one), color=color(places[one.world]), width=1.4)
            for one in logs
        ]
        timed = [
            Line(
                seconds=[time for _, time, _ in one.losses],
                values=_values(one),
                color=color(places[one.world]),
                width=1.4,
            )
            for one in logs
        ]
        label = f"loss-{number}"
        by_epoch.append(
            graphs(lines, x_label="Epochs", id_prefix=f"{label}-epoch", describe=describe, log=log, bounds=bounds)
        )
        by_time.append(curves(timed, id_prefix=f"{label}-time", describe=describe, log=log, bounds=bounds))
    return beside(list(zip(by_strategy, by_epoch, strict=True))), beside(list(zip(by_strategy, by_time, strict=True)))


def beside(titled: Sequence[tuple[str, str]]) -> str:
    """Figures side by side where the page is wide enough, each below its title."""
    each = "".join(f"<div><h4>{escape(title)}</h4>{svg}</div>" for title, svg in titled if svg)
    return f'<div class="pair">{each}</div>' if each else ""


def _over_workers(series: Series, place: int, field: str) -> Graph:
    values = [(point.world, value) for point in series.points if (value := _value(point, field)) is not None]
    return Graph(x=[world for world, _ in values], y=[value for _, value in values], color=color(place))


def _value(point: Point, field: str) -> float | None:
    value: float | None = getattr(point, field)
    return value


def _values(log: Log) -> list[float]:
    return [loss for _, _, loss in log.losses]


def _first_seeds(series: Series) -> list[Log]:
    by_world: dict[int, Log] = {}
    for log in series.logs:
        if log.losses and (log.world not in by_world or log.seed < by_world[log.world].seed):
            by_world[log.world] = log
    return [log for _, log in sorted(by_world.items())]


def _worlds(analysis: Analysis) -> list[int]:
    return sorted({point.world for point in analysis.points})


def _ticks(worlds: Sequence[int]) -> list[float]:
    """The counts that were tried, without those whose labels would run into the next larger one's."""
    ticks: list[float] = []
    for world in reversed(worlds):
        if not ticks or ticks[-1] - world >= worlds[-1] / _CLOSEST:
            ticks.append(world)
    return ticks[::-1]
