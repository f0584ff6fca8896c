"""A scaling study as one page."""

from __future__ import annotations

from pathlib import Path

from hasten.report import words
from hasten.report.study_page import Section, Table, write_study_page
from hasten.report.view import Key
from hasten.study.scale import figures
from hasten.study.scale.analyse import Analysis
from hasten.study.scale.series import Point, workers
from hasten.study.scale.table import rows
from hasten.study.scale.verdict import LEAST_EFFICIENCY
from hasten.study.words import ms

PAGE = "scaling.html"
_IDEAL = Key(name="ideal", color="--muted", dashed=True)


def write_page(found: Analysis, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError if it can't be written."""
    sections = [_speed(found), _quality(found), _spread(found), *_losses(found), _runs(found)]
    if found.warnings:
        sections.insert(0, Section("What makes these figures doubtful", text="\n\n".join(found.warnings)))
    if found.notes:
        sections.append(Section("Notes", text="\n\n".join(found.notes)))
    return write_study_page(
        out,
        title=f"Scaling: {found.name}",
        verdict=" ".join([*found.verdicts, *(["The figures are doubtful, as said below."] if found.warnings else [])]),
        cards=tuple(_cards(found)),
        sections=[section for section in sections if section is not None],
    )


def _cards(found: Analysis) -> list[tuple[str, str, str]]:
    cards = []
    for one in found.series:
        last = next((point for point in reversed(one.points[1:]) if point.speedup is not None), None)
        if last is None or last.speedup is None or last.efficiency is None:
            continue
        detail = f"of {last.ideal:g}x on {workers(last.world)}: {words.share(last.efficiency)}"
        cards.append((f"Speed-up of {one.strategy}", f"{last.speedup:.2f}x", detail))
        if last.total_s is not None:
            faster = f", {last.total_speedup:.2f}x as fast" if last.total_speedup is not None else ""
            cards.append(
                (f"Total of {one.strategy}", words.duration(last.total_s.median), f"{last.world} workers{faster}")
            )
    lowest = min((point for point in found.points if point.fall is not None), key=_less, default=None)
    if lowest is not None and lowest.fall is not None and lowest.fall > 0:
        told = f"{lowest.strategy}, {workers(lowest.world)}"
        cards.append((f"Largest fall of {found.metric}", f"{lowest.fall:.3f}", told))
    return cards


def _less(point: Point) -> float:
    return -(point.fall or 0.0)


def _speed(found: Analysis) -> Section:
    pair = figures.beside((("Speed-up", figures.speedups(found)), ("Efficiency", figures.efficiencies(found))))
    names, lines = rows(found, spreads=False)
    if found.epoch is None:
        compared = "the median of all epochs but the first"
    else:
        compared = f"epoch {found.epoch} (counted from 0)"
    several = " Times and metrics are medians over the runs." if _several(found) else ""
    return Section(
        "Speed-up and efficiency",
        svg=pair,
        keys=(*figures.strategy_keys(found), _IDEAL),
        table=Table(names, lines, numeric=tuple(range(1, len(names)))),
        note=f"Seconds of an epoch are those of {compared}. Speed-up is against {workers(found.baseline)} of the same "
        f"strategy; efficiency is speed-up over the ideal, with a dashed line at {LEAST_EFFICIENCY:.0%}.{several}",
    )


def _quality(found: Analysis) -> Section | None:
    svg = figures.qualities(found)
    if not svg:
        return None
    bars = " A bar goes from the worst run to the best." if _several(found) else ""
    note = f"Higher is better. A fall of more than {found.drop:g} is told.{bars}"
    title = f"{found.metric[:1].upper()}{found.metric[1:]} against workers"
    return Section(title, svg=svg, keys=figures.strategy_keys(found), note=note)


def _spread(found: Analysis) -> Section | None:
    """What the medians of the other table leave out."""
    if not _several(found):
        return None
    columns = (
        "Strategy",
        "Workers",
        "Runs",
        "Least epoch",
        "Largest epoch",
        f"Least {found.metric}",
        f"Largest {found.metric}",
    )
    lines = tuple(
        (
            point.strategy,
            str(point.world),
            str(len(point.seeds)),
            *((words.DASH,) * 2 if point.epoch_s is None else (ms(point.epoch_s.low), ms(point.epoch_s.high))),
            *(words.score(value) for value in _ends(point)),
        )
        for point in found.points
    )
    return Section("Spread over the runs", table=Table(columns, lines, numeric=tuple(range(1, len(columns)))))


def _ends(point: Point) -> tuple[float | None, float | None]:
    return (None, None) if point.metric is None else (point.metric.low, point.metric.high)


def _losses(found: Analysis) -> list[Section]:
    by_epoch, by_time = figures.losses(found)
    if not by_epoch:
        return []
    keys = figures.world_keys(found)
    note = "The first seed's runs." if _several(found) else ""
    return [
        Section("Loss against epochs", svg=by_epoch, keys=keys, note=note),
        Section("Loss against accumulated time", svg=by_time, keys=keys, note=note),
    ]


def _runs(found: Analysis) -> Section:
    columns = ("Run", "Strategy", "Workers", "Seed", "Epoch", "Total", "Peak learning rate", found.metric, "Threads")
    lines = []
    for log in found.logs:
        threads = str((log.machine or {}).get("threads") or "")
        seconds = log.epoch_s(found.epoch)
        lines.append(
            (
                log.source,
                log.strategy,
                str(log.world),
                str(log.seed),
                words.DASH if seconds is None else f"{seconds:.4g}{words.NBSP}s",
                words.duration(log.total_s),
                words.DASH if log.rate is None else f"{log.rate:g}",
                words.score(log.metric),
                threads,
            )
        )
    kept = columns if any(line[-1] for line in lines) else columns[:-1]
    cut = tuple(line[: len(kept)] for line in lines)
    return Section("Every run", table=Table(kept, cut, numeric=tuple(range(2, len(kept)))))


def _several(found: Analysis) -> bool:
    return any(len(point.seeds) > 1 for point in found.points)
