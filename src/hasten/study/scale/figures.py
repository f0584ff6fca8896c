"""The charts of a scaling study."""

from __future__ import annotations

from itertools import groupby

from hasten.report.figures import Line, color, line_chart
from hasten.report.model import Chart, Key
from hasten.study.scale.analyse import Analysis
from hasten.study.scale.log import Log
from hasten.study.scale.series import Series, workers
from hasten.study.scale.verdict import LEAST_EFFICIENCY

_WORKERS = "Workers"


def strategy_keys(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(one.strategy, color(place)) for place, one in enumerate(analysis.series))


def speedups(analysis: Analysis) -> Chart:
    """Speed-up over workers with the dashed line of the ideal."""
    worlds = _worlds(analysis)
    ideal = Line(x=[0, worlds[-1]], y=[0, worlds[-1] / analysis.baseline], color="--muted", width=1.2, dashed=True)
    lines = [_over_workers(one, place, "speedup") for place, one in enumerate(analysis.series)]
    describe = "Speed-up of an epoch over the count of workers"
    svg = line_chart([ideal, *lines], x_label=_WORKERS, id_prefix="speedup", describe=describe, bounds=(0, None),
                     ticks=worlds)  # fmt: skip
    return Chart(svg, "Speed-up")


def efficiencies(analysis: Analysis) -> Chart:
    """Efficiency over workers with a dashed line at the level of the verdict."""
    lines = [_over_workers(one, place, "efficiency") for place, one in enumerate(analysis.series)]
    describe = "Efficiency over the count of workers"
    svg = line_chart(lines, x_label=_WORKERS, id_prefix="efficiency", describe=describe, level=LEAST_EFFICIENCY,
                     bounds=(0, None), ticks=_worlds(analysis))  # fmt: skip
    return Chart(svg, "Efficiency")


def qualities(analysis: Analysis) -> Chart | None:
    """The metric over workers, each count with a bar from its worst run to its best; None where none is known."""
    lines = []
    for place, one in enumerate(analysis.series):
        measured = [(point.world, point.metric) for point in one.points if point.metric is not None]
        spread = [(metric.low, metric.high) for _, metric in measured]
        lines.append(
            Line(
                x=[world for world, _ in measured],
                y=[metric.median for _, metric in measured],
                color=color(place),
                spread=spread if any(low < high for low, high in spread) else (),
            )
        )
    if not any(line.x for line in lines):
        return None
    describe = f"{analysis.metric} over the count of workers"
    ticks = _worlds(analysis)
    return Chart(line_chart(lines, x_label=_WORKERS, id_prefix="metric", describe=describe, ticks=ticks))


def world_keys(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(workers(world), color(place)) for place, world in enumerate(_worlds(analysis)))


def losses(analysis: Analysis, *, by_time: bool) -> tuple[Chart, ...]:
    """Loss over epochs or over time, a chart for each strategy; none if no loss is known.

    Of several seeds the first is drawn. All charts of a row have the same scale.
    """
    by_strategy = {one.strategy: _first_seeds(one) for one in analysis.series}
    values = [loss for logs in by_strategy.values() for log in logs for _, _, loss in log.losses]
    if not values:
        return ()
    log = min(values) > 0 and max(values) > 20 * min(values)
    bounds = (min(values) * 0.8, max(values) * 1.25) if log else (min(0.0, *values), max(values) * 1.05)
    places = {world: place for place, world in enumerate(_worlds(analysis))}
    axis = "time" if by_time else "epoch"
    charts = []
    for number, (strategy, logs) in enumerate(by_strategy.items()):
        lines = [
            Line(
                x=[time if by_time else epoch for epoch, time, _ in one.losses],
                y=[loss for _, _, loss in one.losses],
                color=color(places[one.world]),
                width=1.4,
            )
            for one in logs
        ]
        svg = line_chart(lines, x_label="" if by_time else "Epochs", id_prefix=f"loss-{number}-{axis}", log=log,
                         describe=f"Loss of {strategy} for each count of workers", bounds=bounds)  # fmt: skip
        charts.append(Chart(svg, strategy))
    return tuple(charts)


def _over_workers(series: Series, place: int, field: str) -> Line:
    points = [point for point in series.points if getattr(point, field) is not None]
    return Line(x=[point.world for point in points], y=[getattr(point, field) for point in points], color=color(place))


def _first_seeds(series: Series) -> list[Log]:
    logs = sorted((log for log in series.logs if log.losses), key=lambda log: (log.world, log.seed))
    return [next(of_world) for _, of_world in groupby(logs, key=lambda log: log.world)]


def _worlds(analysis: Analysis) -> list[int]:
    return sorted({point.world for point in analysis.points})
