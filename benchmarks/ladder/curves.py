"""Validation scores over time as a drawing of its own."""

from __future__ import annotations

import io

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.ladder.show import Ladder, metric_word

_MINUTES = (1, 2, 5, 10, 20, 50, 100)
_COLORS = {"hasten": "#1f7fc1", "nnunet": "#c2571f"}


def curves(result: Ladder, published: float) -> str:
    """An SVG file: a line for each run on a logarithmic axis of minutes, and the published value as a dashed line."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    metric = result.task.metric
    for rung in result.rungs:
        for number, run in enumerate(result.results.get(rung.name, ())):
            points = [(point["seconds"] / 60, point[metric]) for point in run["curve"] if point[metric] is not None]
            minutes, scores = zip(*points, strict=True) if points else ((), ())
            label = rung.label if number == 0 else None
            axes.plot(minutes, scores, marker="o", markersize=3, color=_COLORS.get(rung.name, "#566270"), label=label)
    axes.axhline(published, color="#566270", linestyle="--", linewidth=1.2, label=f"nnU-Net, published: {published:g}")
    axes.set_xscale("log")
    axes.set_xticks(_MINUTES, [f"{minutes}" for minutes in _MINUTES])
    axes.minorticks_off()
    axes.set_ylim(0.5, 0.92)
    axes.set_xlabel("minutes from the start of the process")
    axes.set_ylabel(f"{metric_word(result.task)} of the validation cases")
    axes.set_title(result.task.name, loc="left", fontweight="bold")
    axes.grid(True, color="#dbe1e7", linewidth=0.8)
    axes.legend(loc="lower right", frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
