"""A scaling study in the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from hasten.observe.rundir import write_json, writing_to
from hasten.report import words
from hasten.report.figures import Line, color, line_chart
from hasten.report.html import write_page
from hasten.report.model import Chart, Key, Page, Section, Table, print_table
from hasten.scaling.analyse import LEAST_EFFICIENCY, Analysis, Point, Series, workers
from hasten.scaling.logs import Log

_WORKERS = "Workers"


def strategy_keys(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(one.strategy, color(place)) for place, one in enumerate(analysis.series))


def speedups(analysis: Analysis) -> Chart:
    """Speed-up over workers with the dashed line of the ideal."""
    worlds = _worlds(analysis)
    ideal = Line(x=[0, worlds[-1]], y=[0, worlds[-1] / analysis.baseline], color="--muted", width=1.2, dashed=True)
    lines = [_over_workers(one, place, "speedup") for place, one in enumerate(analysis.series)]
    describe = "Speed-up of an epoch over the count of workers"
    svg = line_chart(
        [ideal, *lines], x_label=_WORKERS, id_prefix="speedup", describe=describe, bounds=(0, None), ticks=worlds
    )
    return Chart(svg, "Speed-up")


def efficiencies(analysis: Analysis) -> Chart:
    """Efficiency over workers with a dashed line at the level of the verdict."""
    lines = [_over_workers(one, place, "efficiency") for place, one in enumerate(analysis.series)]
    describe = "Efficiency over the count of workers"
    svg = line_chart(
        lines,
        x_label=_WORKERS,
        id_prefix="efficiency",
        describe=describe,
        level=LEAST_EFFICIENCY,
        bounds=(0, None),
        ticks=_worlds(analysis),
    )
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
        svg = line_chart(
            lines,
            x_label="" if by_time else "Epochs",
            id_prefix=f"loss-{number}-{axis}",
            log=log,
            describe=f"Loss of {strategy} for each count of workers",
            bounds=bounds,
        )
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


PAGE, JSON = "scaling.html", "scaling.json"
_IDEAL = Key("ideal", "--muted", dashed=True)


def print_analysis(analysis: Analysis, echo: Callable[[str], None]) -> None:
    """Print the table, with the compared epoch in its title, and the sentences."""
    against = "" if analysis.baseline == 1 else f", against {analysis.baseline} workers"
    print_table(table_of(analysis), title=f"{analysis.name}: {analysis.epoch_words}{against}")
    for sentence in analysis.verdicts:
        echo(sentence)
    for kind, sentences in (("warning", analysis.warnings), ("note", analysis.notes)):
        for sentence in sentences:
            echo(f"{kind}: {sentence}")


def write(analysis: Analysis, out: Path) -> Path:
    """Write the page, and the figures as JSON, into the folder `out`; returns the page.

    Raises ValueError if it can't be written.
    """
    with writing_to(out):
        write_json(out / JSON, as_json(analysis))
    return write_scale_page(analysis, out / PAGE)


def write_scale_page(analysis: Analysis, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError if it can't be written."""
    doubtful = "\n\n".join(analysis.warnings)
    sections = (
        Section("What makes these figures doubtful", text=doubtful) if doubtful else None,
        _speed(analysis),
        _quality(analysis),
        *_losses(analysis),
        _runs(analysis),
        Section("Notes", text="\n\n".join(analysis.notes)) if analysis.notes else None,
    )
    page = Page(
        title=f"Scaling: {analysis.name}",
        verdict=" ".join([*analysis.verdicts, *(["The figures are doubtful, as said below."] if doubtful else [])]),
        cards=_cards(analysis),
        sections=tuple(section for section in sections if section is not None),
    )
    return write_page(page, out)


def _cards(analysis: Analysis) -> list[tuple[str, str, str]]:
    """The most workers of each strategy."""
    cards = []
    for one in analysis.series:
        last = one.points[-1]
        if last is one.base:
            continue
        value = words.DASH if last.speedup is None else f"{last.speedup:.2f}x"
        detail = f"of {last.ideal:g}x on {workers(last.world)}: {last.doubt or words.share(last.efficiency)}"
        cards.append((f"Speed-up of {one.strategy}", value, detail))
    return cards


def _speed(analysis: Analysis) -> Section:
    if analysis.epoch is None:
        compared = "the median of all epochs but the first"
    else:
        compared = f"epoch {analysis.epoch} (counted from 0)"
    several = " Times and metrics are medians over the runs, with their range." if _several(analysis) else ""
    return Section(
        "Speed-up and efficiency",
        charts=(speedups(analysis), efficiencies(analysis)),
        keys=(*strategy_keys(analysis), _IDEAL),
        table=table_of(analysis),
        note=f"Seconds of an epoch are those of {compared}. Speed-up is against {workers(analysis.baseline)} of the "
        f"same strategy; efficiency is speed-up over the ideal, with a dashed line at {LEAST_EFFICIENCY:.0%}.{several}",
    )


def _quality(analysis: Analysis) -> Section | None:
    chart = qualities(analysis)
    if chart is None:
        return None
    bars = " A bar goes from the worst run to the best." if _several(analysis) else ""
    note = f"Higher is better. Falls of more than {analysis.drop:g} are reported.{bars}"
    title = f"{analysis.metric[:1].upper()}{analysis.metric[1:]} against workers"
    return Section(title, charts=(chart,), keys=strategy_keys(analysis), note=note)


def _losses(analysis: Analysis) -> list[Section]:
    titles = {"Loss against epochs": False, "Loss against accumulated time": True}
    note = "The first seed's runs." if _several(analysis) else ""
    keys = world_keys(analysis)
    rows = [(title, losses(analysis, by_time=by_time)) for title, by_time in titles.items()]
    return [Section(title, charts=charts, keys=keys, note=note) for title, charts in rows if charts]


def _runs(analysis: Analysis) -> Section:
    columns = ("Run", "Strategy", "Workers", "Seed", "Epoch", "Total", "Peak learning rate", analysis.metric, "Threads")
    lines = tuple(
        (
            log.source,
            log.strategy,
            str(log.world),
            str(log.seed),
            words.short_duration(log.epoch_s(analysis.epoch)),
            words.duration(log.total_s),
            words.DASH if log.rate is None else f"{log.rate:g}",
            words.score(log.metric),
            str(log.machine.get("threads") or words.DASH),
        )
        for log in analysis.logs
    )
    return Section("Every run", table=Table(columns, lines, numeric=tuple(range(2, len(columns)))))


def _several(analysis: Analysis) -> bool:
    return any(len(point.seeds) > 1 for point in analysis.points)


def table_of(analysis: Analysis) -> Table:
    """A row for each strategy and count of workers, of several runs with their range; empty columns are left out."""
    several = _several(analysis)
    columns: list[tuple[str, Callable[[Point], str]]] = [
        ("Strategy", lambda point: point.strategy),
        ("Workers", lambda point: str(point.world)),
        ("Runs", lambda point: str(len(point.seeds)) if several else words.DASH),
        ("Epoch", lambda point: point.epoch_s.seconds() if point.epoch_s else words.DASH),
        ("Speed-up", lambda point: _factor(point.speedup)),
        ("Ideal", lambda point: f"{point.ideal:g}x"),
        ("Efficiency", lambda point: words.share(point.efficiency)),
        ("Samples/s", lambda point: words.number(point.samples_per_s)),
        ("Total", lambda point: words.duration(point.total_s.median if point.total_s else None)),
        ("Total speed-up", lambda point: _factor(point.total_speedup)),
        (f"To {analysis.metric} {analysis.target or 0:g}", _target),
        (
            analysis.metric[:1].upper() + analysis.metric[1:],
            lambda point: point.metric.score() if point.metric else words.DASH,
        ),
    ]
    cells = {name: [text_of(point) for point in analysis.points] for name, text_of in columns}
    filled = {name: column for name, column in cells.items() if set(column) != {words.DASH}}
    rows = tuple(zip(*filled.values(), strict=True))
    return Table(tuple(filled), rows, numeric=tuple(range(1, len(filled))))


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


def _factor(value: float | None) -> str:
    return words.DASH if value is None else f"{value:.2f}x"


def _target(point: Point) -> str:
    if point.target_s is None and point.reached is not None:
        return f"{point.reached} of {len(point.seeds)} reached it"
    return words.duration(point.target_s)
