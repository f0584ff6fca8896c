"""Line charts as SVG text for a page.

Every colour that is drawn is a placeholder for a CSS variable of the page, so a figure suits light and dark; text stays
text in the page's own font. User text never enters a figure: legends are HTML next to it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, quantiles

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

WIDTH, HEIGHT = 480, 280
"""Units of the view box: small enough that 13-unit text can be read at the width of a phone."""

NUM_COLORS = 8
MAX_POINTS = 300
"""Points of one line; a longer line is averaged in equal bins, for the weight of the page."""

# Placeholder colours, all distinct and none that matplotlib uses by itself.
_VARIABLES = {
    "--ink": "#010203",
    "--muted": "#010204",
    "--line": "#010205",
    **{f"--c{index}": f"#0102{index + 15:02x}" for index in range(1, NUM_COLORS + 1)},
}
_MARGINS = (44, 10, 46, 10)
"""Left, right, bottom, top."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line. `color` names a CSS variable of the page."""

    points: Sequence[tuple[float, float]]
    """(x, y), in the order of x."""
    color: str
    width: float = 1.8
    dashed: bool = False
    spread: Sequence[tuple[float, float]] = ()
    """Lowest and highest value at each x, drawn as a bar; of lines of up to `MAX_POINTS` points."""


def color(index: int) -> str:
    """The CSS variable of the index-th class or run, 0-based; colours repeat after `NUM_COLORS`."""
    return f"--c{index % NUM_COLORS + 1}"


def is_wide(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows the values better."""
    return min(values) > 0 and max(values) > 20 * min(values)


def line_chart(
    lines: Sequence[Line],
    *,
    id_prefix: str,
    describe: str,
    x_label: str = "",
    level: float | None = None,
    log: bool = False,
    log_x: bool = False,
    bounds: tuple[float, float | None] | None = None,
    ticks: Sequence[float] = (),
) -> str:
    """Lines over the quantity that `x_label` names, with a dashed level; the page describes what they show.

    x_label: without it, x is in seconds since the start. bounds: lowest and highest value of the axis, None for as high
    as the lines. ticks: places on x, of which those are left out whose labels would run into the next larger one's.

    Returns an <svg> element; `describe` is its spoken label.
    """
    divisor = 1.0
    if not x_label:
        longest = max((x for line in lines for x, _ in line.points), default=0.0)
        unit, divisor = ("s", 1.0) if longest <= 600 else ("min", 60.0) if longest <= 7200 else ("h", 3600.0)
        x_label = f"Time since the start ({unit})"
    figure, axes = _new_figure(x_label)
    for line in lines:
        _draw(axes, line, divisor)
    if level is not None:
        axes.axhline(level, color=_VARIABLES["--muted"], linewidth=1.2, linestyle=(0, (5, 4)))
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_Plain(minor_thresholds=(2, 0.6)))
        axes.yaxis.set_minor_formatter(_Plain(minor_thresholds=(2, 0.6)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    if log_x:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    else:
        axes.set_xlim(left=0)
    if bounds is not None:
        axes.set_ylim(*bounds)
    if ticks:
        ticks = ticks if log_x else _apart(ticks)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.grid(True, color=_VARIABLES["--line"], linewidth=0.8)
    return _svg(figure, id_prefix=id_prefix, describe=describe)


def strip_chart(groups: Sequence[tuple[int, str, Sequence[float]]], x_label: str, describe: str) -> str:
    """Values in one row for each group: dots, with a bar from the first to the third quartile and the median.

    groups: the number that its row is named by, a CSS variable of the page, and at least one value. The first is the
    top row. Returns an <svg> element as `line_chart` does.
    """
    height = min(_MARGINS[2] + _MARGINS[3] + 34 * len(groups), HEIGHT)
    figure, axes = _new_figure(x_label, height)
    for row, (_, name, values) in enumerate(groups):
        hue, shown = _VARIABLES[name], sorted(values)[:: -(-len(values) // MAX_POINTS)]
        low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        axes.plot(shown, [row] * len(shown), "o", color=hue, markersize=4, markeredgewidth=0, alpha=0.6)
        axes.hlines(row, low, high, color=hue, linewidth=9, alpha=0.35)
        axes.vlines(middle, row - 0.32, row + 0.32, color=hue, linewidth=2.4)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_yticks(range(len(groups)), [str(number) for number, _, _ in groups])
    axes.grid(True, axis="x", color=_VARIABLES["--line"], linewidth=0.8)
    return _svg(figure, id_prefix="strip", describe=describe, height=height)


def _apart(ticks: Sequence[float]) -> list[float]:
    """The ticks that lie far enough from the next larger one."""
    least = max(ticks) / 24
    apart: list[float] = []
    for tick in sorted(ticks, reverse=True):
        if not apart or apart[-1] - tick >= least:
            apart.append(tick)
    return apart[::-1]


def _draw(axes: matplotlib.axes.Axes, line: Line, divisor: float) -> None:
    points, hue = _thin(line.points), _VARIABLES[line.color]
    axes.plot(
        [x / divisor for x, _ in points],
        [y for _, y in points],
        color=hue,
        linewidth=line.width,
        linestyle=(0, (5, 4)) if line.dashed else "solid",
        marker="o" if len(points) <= 30 and not line.dashed else None,
        markersize=3.5,
        markeredgewidth=0,
    )
    if line.spread:
        low, high = zip(*line.spread, strict=True)
        axes.vlines([x for x, _ in line.points], low, high, color=hue, linewidth=1.2)


class _Plain(LogFormatter):
    """Tick labels as 0.01, not 1e-02."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return f"{value:g}" if super().__call__(value, position) else ""


def _new_figure(x_label: str, height: int = HEIGHT) -> tuple[Figure, matplotlib.axes.Axes]:
    """A figure with its only axes."""
    left, right, bottom, top = _MARGINS
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    FigureCanvasSVG(figure)
    axes = figure.add_axes(
        (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - bottom - top) / height)
    )
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_VARIABLES["--muted"], labelsize=13, length=0, pad=6)
    axes.set_xlabel(x_label, color=_VARIABLES["--muted"], fontsize=13)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_VARIABLES["--line"])
    return figure, axes


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Reduce to at most `MAX_POINTS` points: means over bins of equal count, the last bin the rest."""
    size = -(-len(points) // MAX_POINTS)
    if size <= 1:
        return points
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in each), fmean(y for _, y in each)) for each in bins]


def _svg(figure: Figure, *, id_prefix: str, describe: str, height: int = HEIGHT) -> str:
    """The figure as an element that can be embedded in a page next to others.

    `id_prefix` makes its ids unique, and the sheet that matplotlib embeds is left out, because inside HTML both would
    reach beyond this figure. The settings are only read while drawing, and are restored.
    """
    text = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": id_prefix}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<style\b.*?</style>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"(<g) id=\"[^\"]*\"", r"\1", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for variable, stand_in in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return f'<svg class="figure" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(describe)}">{svg}'
