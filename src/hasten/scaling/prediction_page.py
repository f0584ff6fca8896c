"""Predictions for the terminal, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hasten.observe.folder import writing_to
from hasten.observe.rundir import write_json
from hasten.report.figures import Line, line_chart
from hasten.report.html import write_page
from hasten.report.model import Bar, Chart, Key, Page, Section, Table
from hasten.report.words import NBSP, share, short_duration
from hasten.scaling.predict import COMPUTE, Prediction, Source, predict

PREDICTION_JSON, PREDICTION_HTML = "prediction.json", "prediction.html"
_MODEL = (
    "A step takes as long as the slowest worker's compute, and what of the gradients' all-reduces the backward pass "
    "does not hide; the last bucket never hides. An all-reduce costs a latency for each message and a time for each "
    "byte. Validation is distributed, checkpoints are not.\n\n"
    "Not in the model: other jobs on the network, congestion, workers of a node that share cores or disks, and a batch "
    "so large that more epochs are needed."
)


def table_of(predictions: Sequence[Prediction]) -> Table:
    """A row for each count of workers."""
    rows = [
        (str(one.workers), share(one.efficiency), _between(one), short_duration(one.epoch_s), one.limit)
        for one in predictions
    ]
    return Table(("Workers", "Efficiency", "Range", "Epoch", "Limited by"), tuple(rows), numeric=(0, 1, 2, 3))


def verdict(predictions: Sequence[Prediction], source: Source) -> str:
    """One sentence of the largest count."""
    last = predictions[-1]
    why = "nothing to speak of is lost" if last.limit == COMPUTE else f"most is lost to {last.limit}"
    return (
        f"On {last.workers:,} workers ({source.mode} scaling) {100 * last.efficiency:.0f}{NBSP}% of an ideal speed-up "
        f"is predicted, {_between(last)} within the error bars; {why}."
    )


def _between(one: Prediction) -> str:
    low, high = one.efficiency_range
    return f"{100 * low:.0f} to {100 * high:.0f} %".replace(" ", NBSP)


def write(out: Path, predictions: Sequence[Prediction], source: Source) -> tuple[Path, Path]:
    """Write prediction.json and prediction.html into the folder `out`, and return them.

    Raises ValueError if the folder can't be written.
    """
    facts = {name: getattr(source, name) for name in ("name", "strategy", "mode", "notes")}
    facts["measured_epochs"] = [{"workers": workers, "epoch_s": seconds} for workers, seconds in source.measured]
    facts["predictions"] = [{**asdict(one), "limit": one.limit} for one in predictions]
    with writing_to(out):
        write_json(out / PREDICTION_JSON, facts)
    good = [one for one in predictions if one.efficiency >= 0.8]
    # The fewest and the most workers, and the most that are well used.
    shown = [one for one in predictions if one in (predictions[0], predictions[-1], *good[-1:])]
    page = Page(
        title=f"Predicted scaling of {source.name}",
        verdict=verdict(predictions, source),
        cards=[(f"{one.workers:,} workers", share(one.efficiency), f"{_between(one)}; {one.limit}") for one in shown],
        sections=_sections(predictions, source),
    )
    return out / PREDICTION_JSON, write_page(page, out / PREDICTION_HTML)


def _sections(predictions: Sequence[Prediction], source: Source) -> tuple[Section, ...]:
    last = predictions[-1]
    losses = [(name, value) for name, value in last.losses.items() if value >= 5e-4]
    parts = [(name, value * last.epoch_s) for name, value in (("work that counts", last.efficiency), *losses)]
    return (
        Section(
            "Efficiency",
            text="The range is the central 80 % of what the measurements and the assumptions' errors allow.",
            charts=(_chart(predictions, source),),
            table=table_of(predictions),
        ),
        Section(f"Where an epoch of {last.workers:,} workers goes", bar=Bar(tuple(parts))),
        Section("Basis", text="\n\n".join(source.notes)),
        Section("The model", text=_MODEL),
    )


def _chart(predictions: Sequence[Prediction], source: Source) -> Chart:
    """Efficiency with its range over the workers, those measured included, and crosses at what was measured."""
    at_measured = [predict(source, workers) for workers, _ in source.measured]
    points = sorted({one.workers: one for one in (*at_measured, *predictions)}.values(), key=lambda one: one.workers)
    counts = [one.workers for one in points]
    band = [(100 * low, 100 * high) for low, high in (one.efficiency_range for one in points)]
    lines = [Line(x=counts, y=[100 * one.efficiency for one in points], color="--c1", band=band)]
    keys = [Key("predicted", "--c1", "shaded: its range")]
    alone_s = sum(source.model(1).values())
    measured = [100 * alone_s / (workers * seconds) for workers, seconds in source.measured]
    if measured:
        lines.append(Line(x=[workers for workers, _ in source.measured], y=measured, color="--c2", markers=True))
        keys.append(Key("measured", "--c2"))
    describe = f"Predicted efficiency in per cent on {counts[0]} to {counts[-1]} workers with its range"
    bounds = (0, 1.03 * max(100.0, *measured, 0.0))
    svg = line_chart(
        lines, x_label="Workers", id_prefix="efficiency", describe=describe, log_x=True, bounds=bounds, ticks=counts
    )
    return Chart(svg, "Efficiency (%)", tuple(keys))
