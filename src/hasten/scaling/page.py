"""A scaling study in the terminal, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.observe.rundir import write_json, writing_to
from hasten.report import words
from hasten.report.figures import Line, color, is_wide, line_chart
from hasten.report.html import write_page
from hasten.report.model import Chart, Key, Page, Section, Table, table_lines
from hasten.scaling.analyse import LEAST_EFFICIENCY, Analysis, Point, workers


def _over_workers(analysis: Analysis, lines: Sequence[Line], name: str, **axes: Any) -> str:
    """axes: further arguments of `line_chart`."""
    describe, ticks = f"{name} over the count of workers", _worlds(analysis)
    return line_chart(lines, x_label="Workers", id_prefix=name.split()[-1], describe=describe, ticks=ticks, **axes)


def _lines(analysis: Analysis, value: Callable[[Point], float | None]) -> list[Line]:
    """A line for each strategy, over the counts of workers whose value is known."""
    lines = []
    for place, one in enumerate(analysis.series):
        points = [(point.world, y) for point in one.points if (y := value(point)) is not None]
        lines.append(Line(points=points, color=color(place)))
    return lines


def _losses(analysis: Analysis, *, by_time: bool) -> Section | None:
    """Loss over epochs or over time, a chart for each strategy, all of one scale; None if no loss is known."""
    # The logs are in the order of seeds.
    firsts = [{log.world: log for log in reversed(one.logs) if log.losses} for one in analysis.series]
    values = [loss for logs in firsts for log in logs.values() for _, _, loss in log.losses]
    if not values:
        return None
    wide = is_wide(values)
    bounds = (min(values) * 0.8, max(values) * 1.25) if wide else (min(0.0, *values), max(values) * 1.05)
    axes: dict[str, Any] = {"x_label": "" if by_time else "Epochs", "log": wide, "bounds": bounds}
    hues = {world: color(place) for place, world in enumerate(_worlds(analysis))}
    charts: list[Chart] = []
    for one, logs in zip(analysis.series, firsts, strict=True):
        lines = []
        for world, log in logs.items():
            points = [(time if by_time else epoch, loss) for epoch, time, loss in log.losses]
            lines.append(Line(points=points, color=hues[world], width=1.4))
        id_ = f"loss-{len(charts)}-{'time' if by_time else 'epoch'}"
        svg = line_chart(lines, id_prefix=id_, describe=f"Loss of {one.strategy} for each count of workers", **axes)
        charts.append(Chart(svg, one.strategy))
    return Section(
        f"Loss against {'accumulated time' if by_time else 'epochs'}",
        charts=tuple(charts),
        keys=tuple(Key(workers(world), hue) for world, hue in hues.items()),
        note="The first seed's runs." if _several(analysis) else "",
    )


def _worlds(analysis: Analysis) -> list[int]:
    return sorted({point.world for point in analysis.points})


PAGE, JSON = "scaling.html", "scaling.json"


def print_analysis(analysis: Analysis, echo: Callable[[str], None]) -> None:
    """Print the table, with the compared epoch in its title, and the sentences."""
    against = "" if analysis.baseline == 1 else f", against {analysis.baseline} workers"
    epoch = "median epoch" if analysis.epoch is None else f"epoch {analysis.epoch}"
    print(f"{analysis.name}: {epoch}{against}", "", *table_lines(table_of(analysis)), sep="\n")
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
    doubtful = "\n\n".join(analysis.warnings)
    sections = (
        Section("What makes these figures doubtful", text=doubtful) if doubtful else None,
        _speed(analysis),
        quality(analysis),
        *(_losses(analysis, by_time=by_time) for by_time in (False, True)),
        Section("Notes", text="\n\n".join(analysis.notes)) if analysis.notes else None,
    )
    page = Page(
        title=f"Scaling: {analysis.name}",
        verdict=" ".join([*analysis.verdicts, *(["The figures are doubtful, as said below."] if doubtful else [])]),
        cards=_cards(analysis),
        sections=tuple(section for section in sections if section is not None),
    )
    return write_page(page, out / PAGE)


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
    compared = "the median of all epochs but the first"
    if analysis.epoch is not None:
        compared = f"epoch {analysis.epoch} (counted from 0)"
    several = " Times and metrics are medians over the runs, with their range." if _several(analysis) else ""
    most = _worlds(analysis)[-1]
    ideal = Line(points=[(0, 0), (most, most / analysis.baseline)], color="--muted", width=1.2, dashed=True)
    speedups = [ideal, *_lines(analysis, lambda point: point.speedup)]
    efficiencies = _lines(analysis, lambda point: point.efficiency)
    least = {"bounds": (0, None), "level": LEAST_EFFICIENCY}
    return Section(
        "Speed-up and efficiency",
        charts=(
            Chart(_over_workers(analysis, speedups, "Speed-up", bounds=(0, None)), "Speed-up"),
            Chart(_over_workers(analysis, efficiencies, "Efficiency", **least), "Efficiency"),
        ),
        keys=(*_strategies(analysis), Key("ideal", "--muted", dashed=True)),
        table=table_of(analysis),
        note=f"Seconds of an epoch are those of {compared}. Speed-up is against {workers(analysis.baseline)} of the "
        f"same strategy; efficiency is speed-up over the ideal, with a dashed line at {LEAST_EFFICIENCY:.0%}.{several}",
    )


def _strategies(analysis: Analysis) -> tuple[Key, ...]:
    return tuple(Key(one.strategy, color(place)) for place, one in enumerate(analysis.series))


def quality(analysis: Analysis) -> Section | None:
    """The metric over workers, each count with a bar from its worst run to its best; None where none is known."""
    lines = _lines(analysis, lambda point: None if point.metric is None else point.metric.median)
    for place, one in enumerate(analysis.series):
        spread = [(point.metric.low, point.metric.high) for point in one.points if point.metric is not None]
        if any(low < high for low, high in spread):
            lines[place] = replace(lines[place], spread=spread)
    if not any(line.points for line in lines):
        return None
    chart = Chart(_over_workers(analysis, lines, analysis.metric))
    bars = " A bar goes from the worst run to the best." if _several(analysis) else ""
    note = f"Higher is better. Falls of more than {analysis.drop:g} are reported.{bars}"
    title = f"{analysis.metric[:1].upper()}{analysis.metric[1:]} against workers"
    return Section(title, charts=(chart,), keys=_strategies(analysis), note=note)


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
            lambda point: point.metric.text(".3f") if point.metric else words.DASH,
        ),
    ]
    cells = {name: [text_of(point) for point in analysis.points] for name, text_of in columns}
    filled = {name: column for name, column in cells.items() if set(column) != {words.DASH}}
    return Table(tuple(filled), tuple(zip(*filled.values(), strict=True)), numeric=tuple(range(1, len(filled))))


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
