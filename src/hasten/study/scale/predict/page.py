"""Predictions for the terminal, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hasten.observe.rundir import write_json
from hasten.report.figures import Line, line_chart
from hasten.report.html import write_page
from hasten.report.model import Bar, Chart, Key, Page, Section, Table
from hasten.report.words import NBSP, share, short_duration
from hasten.study.folder import writing_to
from hasten.study.scale.predict.fit import Predicted, predictions
from hasten.study.scale.predict.model import COMPUTE
from hasten.study.scale.predict.source import Source

PREDICTION_JSON, PREDICTION_HTML = "prediction.json", "prediction.html"
_MODEL = (
    "A step takes as long as the slowest worker's compute, and what of the gradients' all-reduces the backward pass "
    "does not hide: a bucket can go when its part of the backward pass is through, so the last one never hides. An "
    "all-reduce costs a latency for each message and a time for each byte, by a ring, a tree or by levels (within a "
    "node, then between nodes), whichever is least. Data count where making a batch takes longer than the step; "
    "validation is distributed, checkpoints and start-up are not.\n\n"
    "Not in the model: other jobs on the network, congestion, workers of a node that share cores or disks, and a batch "
    "so large that more epochs are needed."
)
_RANGE = "The range is the central 80 % of what the measurements and the assumptions' errors allow."


def table_of(predictions: Sequence[Predicted], source: Source) -> Table:
    """A row for each count of workers."""
    time = "Epoch" if source.epochs_only else "Step"
    columns = ("Workers", "Efficiency", "Range", time, "Gradients' wait", "Limited by")
    rows = []
    for one in predictions:
        point, (low, high) = one.point, one.efficiency
        between = f"{100 * low:.0f} to {100 * high:.0f} %".replace(" ", NBSP)
        seconds = short_duration(point.epoch_s if source.epochs_only else point.step_s)
        waits = share(point.communication_share)
        rows.append((str(point.workers), share(point.efficiency), between, seconds, waits, point.limit))
    return Table(columns, tuple(rows), numeric=(0, 1, 2, 3, 4))


def verdict(predictions: Sequence[Predicted], source: Source) -> str:
    """One sentence of the largest count."""
    last = predictions[-1]
    low, high = last.efficiency
    why = "nothing to speak of is lost" if last.point.limit == COMPUTE else f"most is lost to {last.point.limit}"
    return (
        f"On {last.point.workers:,} workers ({source.mode} scaling) {100 * last.point.efficiency:.0f}{NBSP}% of an "
        f"ideal speed-up is predicted, {100 * low:.0f} to {100 * high:.0f}{NBSP}% within the error bars; {why}."
    )


def as_json(predictions: Sequence[Predicted], source: Source) -> dict[str, Any]:
    best = source.fitted.best
    return {
        "source": source.name,
        "strategy": source.strategy,
        "mode": source.mode,
        "notes": source.fitted.notes,
        "training": asdict(best.training),
        "network": asdict(best.network),
        "measured_epochs": [{"workers": workers, "epoch_s": seconds} for workers, seconds in source.measured],
        "predictions": [
            {
                **{name: getattr(one.point, name) for name in ("workers", "efficiency", "step_s", "epoch_s")},
                "efficiency_range": one.efficiency,
                "step_s_range": one.step_s,
                "epoch_s_range": one.epoch_s,
                "communication_share": one.point.communication_share,
                "limit": one.point.limit,
                "losses": one.point.losses,
            }
            for one in predictions
        ],
    }


def write(out: Path, predictions: Sequence[Predicted], source: Source) -> tuple[Path, Path]:
    """Write prediction.json and prediction.html into the folder `out`, and return them.

    Raises ValueError if the folder can't be written.
    """
    with writing_to(out):
        write_json(out / PREDICTION_JSON, as_json(predictions, source))
    page = Page(
        title=f"Predicted scaling of {source.name}",
        verdict=verdict(predictions, source),
        cards=_cards(predictions),
        sections=tuple(_sections(predictions, source)),
    )
    return out / PREDICTION_JSON, write_page(page, out / PREDICTION_HTML)


def _cards(predictions: Sequence[Predicted]) -> tuple[tuple[str, str, str], ...]:
    good = [one for one in predictions if one.point.efficiency >= 0.8]
    # The fewest and the most workers, and the most that are well used.
    shown = [one for one in predictions if one in (predictions[0], predictions[-1], *good[-1:])]
    cards = []
    for one in shown:
        low, high = one.efficiency
        detail = f"{100 * low:.0f} to {100 * high:.0f}{NBSP}%; {one.point.limit}"
        cards.append((f"{one.point.workers:,} workers", share(one.point.efficiency), detail))
    return tuple(cards)


def _sections(predicted: Sequence[Predicted], source: Source) -> list[Section]:
    best = source.fitted.best
    alone_s = best.at(1, source.mode).epoch_s
    measured = [(workers, alone_s / (workers * seconds)) for workers, seconds in source.measured]
    # The line begins where the measured counts do, so that the eye sees how they lie about it.
    at_measured = predictions(source.fitted, [workers for workers, _ in measured], source.mode)
    line = {one.point.workers: one for one in (*at_measured, *predicted)}
    last = predicted[-1].point
    losses = [(name, value) for name, value in last.losses.items() if value >= 5e-4]
    links = tuple(
        (link.name, f"{1e6 * link.latency_s:.3g}", f"{link.bytes_per_s / 1e9:.3g}", link.note)
        for link in (best.network.inside, best.network.between)
        if link is not None
    )
    sections = [
        Section(
            "Efficiency",
            text=_RANGE,
            charts=(_chart([line[workers] for workers in sorted(line)], measured),),
            table=table_of(predicted, source),
        )
    ]
    if losses:
        parts = tuple((name, part * last.epoch_s) for name, part in (("work that counts", last.efficiency), *losses))
        sections.append(Section(f"Where an epoch of {last.workers:,} workers goes", bar=Bar(parts)))
    sections.append(Section("What it rests on", text="\n\n".join(source.fitted.notes)))
    if not source.epochs_only:
        header = ("Link", "Latency (us)", "Rate (GB/s)", "From")
        sections.append(Section("The network", table=Table(header, links, numeric=(1, 2))))
    sections.append(Section("The model", text=_MODEL))
    return sections


def _chart(predictions: Sequence[Predicted], measured: Sequence[tuple[int, float]]) -> Chart:
    """Efficiency with its range over the workers, and crosses at what was measured."""
    counts = [one.point.workers for one in predictions]
    lines = [
        Line(
            x=counts,
            y=[100 * one.point.efficiency for one in predictions],
            color="--c1",
            band=[(100 * low, 100 * high) for low, high in (one.efficiency for one in predictions)],
        )
    ]
    keys = [Key("predicted", "--c1", "shaded: its range")]
    if measured:
        values = [100 * value for _, value in measured]
        lines.append(Line(x=[workers for workers, _ in measured], y=values, color="--c2", markers=True))
        keys.append(Key("measured", "--c2"))
    every = sorted({*counts, *(workers for workers, _ in measured)})
    top = max(100.0, *(100 * value for _, value in measured)) if measured else 100.0
    describe = f"Predicted efficiency in per cent on {counts[0]} to {counts[-1]} workers with its range"
    svg = line_chart(lines, x_label="Workers", id_prefix="efficiency", describe=describe, log_x=True,
                     bounds=(0, 1.03 * top), ticks=every)  # fmt: skip
    return Chart(svg, "Efficiency (%)", tuple(keys))
