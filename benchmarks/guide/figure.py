"""The intervals of all measured claims in one drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.guide.claim import Result

_WIDTH, _ROW, _TOP = 480, 17, 24
_LEFT, _RIGHT = 128, 470
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_COLOR = {"holds": "var(--good)", "does not hold": "var(--bad)", "can't tell": "var(--muted)"}


def intervals(results: Sequence[Result]) -> str:
    """An <svg> with a row for each claim: the gain of the way that its verdict speaks of, on a logarithmic scale.

    Empty if no claim was timed.
    """
    rows = []
    for result in results:
        output = result.outcome.comparison
        if output is not None and result.outcome.arm in output.arms:
            rows.append((result.guidance.name, result.outcome.verdict, output.arms[result.outcome.arm]))
    if not rows:
        return ""
    low = min(0.5, *(arm.low for *_, arm in rows))
    high = max(2.0, *(arm.high for *_, arm in rows))
    height = _TOP + _ROW * len(rows) + 6

    def at(gain: float) -> float:
        share = math.log(max(gain, low) / low) / math.log(high / low)
        return _LEFT + share * (_RIGHT - _LEFT)

    drawn = []
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        x, color = at(tick), "var(--ink)" if tick == 1 else "var(--line)"
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 4}" style="stroke:{color}"/>')
        drawn.append(f'<text x="{x:.1f}" y="12" text-anchor="middle" style="fill:var(--muted)">{tick:g}x</text>')
    for number, (name, verdict, arm) in enumerate(rows):
        y, color = _TOP + _ROW * (number + 0.5), _COLOR[verdict]
        drawn.append(f'<text x="0" y="{y + 4:.1f}" style="fill:var(--ink)">{escape(name)}</text>')
        drawn.append(
            f'<line x1="{at(arm.low):.1f}" x2="{at(arm.high):.1f}" y1="{y}" y2="{y}"'
            f' style="stroke:{color};stroke-width:3;stroke-linecap:round"/>'
        )
        drawn.append(f'<circle cx="{at(arm.gain):.1f}" cy="{y}" r="4" style="fill:{color}"/>')
    message = "How many times as fast the named way is, with its interval, claim by claim"
    return (
        f'<svg class="figure" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{message}" font-size="11">'
        f"{''.join(drawn)}</svg>"
    )
