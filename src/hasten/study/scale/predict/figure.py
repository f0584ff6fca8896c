"""Efficiency over the count of workers, with its error bars, as a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.study.scale.predict.fit import Predicted

_WIDTH, _HEIGHT = 480, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 468, 12, 230
_APART = 34
"""Between counts that are named below the axis."""


def efficiency_figure(predictions: Sequence[Predicted], measured: Sequence[tuple[int, float]] = ()) -> str:
    """An <svg>: a line with its range, over a logarithmic axis. measured: crosses at (workers, efficiency)."""
    counts = [one.point.workers for one in predictions]
    every = sorted({*counts, *(workers for workers, _ in measured)})
    low, high = math.log2(every[0]), math.log2(every[-1])
    top = max(1.0, *(value for _, value in measured)) if measured else 1.0

    def x(workers: float) -> float:
        share = (math.log2(workers) - low) / (high - low) if high > low else 0.5
        return _LEFT + 8 + share * (_RIGHT - _LEFT - 16)

    def y(efficiency: float) -> float:
        return _BOTTOM - efficiency / top * (_BOTTOM - _TOP)

    elements = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        elements.append(
            f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" style="stroke:var(--line)"/>'
        )
        elements.append(_text(_LEFT - 6, y(tick) + 4, f"{100 * tick:.0f} %", "end"))
    last_label = math.inf
    for workers in reversed(every):
        if last_label - x(workers) >= _APART:
            last_label = x(workers)
            elements.append(_text(last_label, _BOTTOM + 20, f"{workers}", "middle"))
    elements.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 42, "Workers", "middle"))
    # Both edges of the range as one outline, there and back.
    edge = [(x(one.point.workers), y(one.efficiency[1])) for one in predictions]
    edge += [(x(one.point.workers), y(one.efficiency[0])) for one in reversed(predictions)]
    line = [(x(one.point.workers), y(one.point.efficiency)) for one in predictions]
    elements.append(f'<polygon points="{_points(edge)}" style="fill:var(--c1);opacity:0.2"/>')
    elements.append(f'<polyline points="{_points(line)}" style="fill:none;stroke:var(--c1);stroke-width:2"/>')
    elements += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" style="fill:var(--c1)"/>' for a, b in line]
    for workers, value in measured:
        a, b = x(workers), y(value)
        elements.append(
            f'<path d="M{a - 5:.1f} {b:.1f}h10M{a:.1f} {b - 5:.1f}v10" style="stroke:var(--c2);stroke-width:2.4"/>'
        )
    label = f"Predicted efficiency on {counts[0]} to {counts[-1]} workers with its range"
    return (
        f'<svg class="figure" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" font-size="13">'
        f"{''.join(elements)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:var(--muted)">{text}</text>'


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
