"""Curves and the time bar as SVG text for a page.

Every colour that is drawn is a placeholder for a CSS variable of the page, so a figure suits light and dark; text stays
text in the page's own font. User text never enters a figure: legends are HTML next to it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

WIDTH, HEIGHT = 480, 280
"""Units of the view box: small enough that 13-unit text can be read at the width of a phone."""

NUM_COLORS = 8
MAX_POINTS = 300
"""Points of one line; a longer line is averaged in equal bins, for the weight of the page."""

# Placeholder colours, all distinct and none that matplotlib writes by itself.
_VARIABLES = {
    "--ink": "#010203",
    "--muted": "#010204",
    "--line": "#010205",
    "--paper": "#010206",
    "--rest": "#010207",
    **{f"--c{index}": f"#0102{index + 15:02x}" for index in range(1, NUM_COLORS + 1)},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve over seconds. `color` names a CSS variable of the page."""

    seconds: Sequence[float]
    values: Sequence[float]
    color: str
    width: float = 1.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of the time bar."""

    seconds: float
    color: str


def color(index: int) -> str:
    """The CSS variable of the index-th class or run, 0-based; colours repeat after `NUM_COLORS`."""
    return f"--c{index % NUM_COLORS + 1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """One line over any quantity. `color` names a CSS variable of the page."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    width: float = 1.8
    dashed: bool = False
    spread: Sequence[tuple[float, float]] = ()
    """Lowest and highest value at each x, drawn as a bar; of lines of up to `MAX_POINTS` points."""


def curves(
    lines: Sequence[Line],
    *,
    id_prefix: str,
    describe: str,
    target: float | None = None,
    log: bool = False,
    bounds: tuple[float, float | None] | None = None,
) -> str:
    """Lines over time, with a dashed level at `target`; the page describes what they show.

    bounds: lowest and highest value of the axis, None for as high as the lines.

    Returns an <svg> element; `describe` is its spoken label.
    """
    longest = max((max(line.seconds) for line in lines if len(line.seconds)), default=0.0)
    unit, divisor = _time_unit(longest)
    return graphs(
        [
            Graph(x=[second / divisor for second in line.seconds], y=line.values, color=line.color, width=line.width)
            for line in lines
        ],
        x_label=f"Time since the start ({unit})",
        id_prefix=id_prefix,
        describe=describe,
        level=target,
        log=log,
        bounds=bounds,
    )


def graphs(
    lines: Sequence[Graph],
    *,
    x_label: str,
    id_prefix: str,
    describe: str,
    level: float | None = None,
    log: bool = False,
    bounds: tuple[float, float | None] | None = None,
    ticks: Sequence[float] = (),
) -> str:
    """Lines over the quantity that `x_label` names, with a dashed level. bounds: as of `curves`; ticks: places on x.

    Returns an <svg> element; `describe` is its spoken label.
    """
    figure, axes = _axes(HEIGHT, left=44, right=10, bottom=46, top=10)
    for line in lines:
        x, y = _thin(line.x, line.y)
        axes.plot(
            x,
            y,
            color=_VARIABLES[line.color],
            linewidth=line.width,
            linestyle=(0, (5, 4)) if line.dashed else "solid",
            marker="o" if len(y) <= 30 and not line.dashed else None,
            markersize=3.5,
            markeredgewidth=0,
        )
        if line.spread:
            low, high = zip(*line.spread, strict=True)
            axes.vlines(line.x, low, high, color=_VARIABLES[line.color], linewidth=1.2)
    if level is not None:
        axes.axhline(level, color=_VARIABLES["--muted"], linewidth=1.2, linestyle=(0, (5, 4)))
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_Plain(minor_thresholds=(2, 0.6)))
        axes.yaxis.set_minor_formatter(_Plain(minor_thresholds=(2, 0.6)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(left=0)
    if bounds is not None:
        axes.set_ylim(*bounds)
    if ticks:
        axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.grid(True, color=_VARIABLES["--line"], linewidth=0.8)
    axes.set_xlabel(x_label)
    return _svg(figure, id_prefix=id_prefix, describe=describe)


def time_bar(parts: Sequence[Part], *, id_prefix: str, describe: str) -> str:
    """One horizontal bar stacked from `parts`, in their order. Returns an <svg> element."""
    height = 104
    figure, axes = _axes(height, left=10, right=10, bottom=46, top=8)
    total = sum(part.seconds for part in parts)
    unit, divisor = _time_unit(total)
    start = 0.0
    for part in parts:
        axes.barh(
            0,
            part.seconds / divisor,
            left=start / divisor,
            height=1.0,
            color=_VARIABLES[part.color],
            edgecolor=_VARIABLES["--paper"],
            linewidth=0.8,
        )
        start += part.seconds
    axes.set_ylim(-0.5, 0.5)
    axes.set_xlim(0, total / divisor)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.set_xlabel(f"Time, summed for each part ({unit})")
    return _svg(figure, id_prefix=id_prefix, describe=describe)


class _Plain(LogFormatter):
    """Tick labels as 0.01, not 1e-02."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return f"{value:g}" if super().__call__(value, position) else ""


def _axes(height: int, *, left: int, right: int, bottom: int, top: int) -> tuple[Figure, matplotlib.axes.Axes]:
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    FigureCanvasSVG(figure)
    axes = figure.add_axes(
        (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - bottom - top) / height)
    )
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_VARIABLES["--muted"], labelsize=13, length=0, pad=6)
    axes.xaxis.label.set_color(_VARIABLES["--muted"])
    axes.xaxis.label.set_fontsize(13)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_VARIABLES["--line"])
    return figure, axes


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds <= 600:
        return "s", 1.0
    return ("min", 60.0) if seconds <= 7200 else ("h", 3600.0)


def _thin(seconds: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` points: means over bins of equal count, the last bin the rest."""
    size = -(-len(values) // MAX_POINTS)
    if size <= 1:
        return list(seconds), list(values)
    starts = range(0, len(values), size)
    return (
        [_mean(seconds[start : start + size]) for start in starts],
        [_mean(values[start : start + size]) for start in starts],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _svg(figure: Figure, *, id_prefix: str, describe: str) -> str:
    """The figure as an element that can be embedded in a page next to others.

    Ids are made unique by `id_prefix`, and the sheet that matplotlib embeds is left out, because inside HTML both
    would reach beyond this figure. The settings are only read while drawing, and are restored.
    """
    text = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hasten"}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<style\b.*?</style>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"(<g) id=\"[^\"]*\"", r"\1", svg)
    svg = re.sub(r' id="([^"]+)"', rf' id="{id_prefix}-\1"', svg)
    svg = re.sub(r"(xlink:href=\"|url\()#", rf"\1#{id_prefix}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for variable, stand_in in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    box = f"0 0 {WIDTH} {round(figure.get_figheight() * 72)}"
    return f'<svg class="figure" viewBox="{box}" role="img" aria-label="{describe}">{svg}'
