"""The figure of README and the site's first page, as SVG text that is the same on every machine."""

from __future__ import annotations

import math
import statistics
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 190, 140, 58, 22
STYLE = """
<style>
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .head { font-weight: 600; font-size: 15px }
  .note { font-size: 12px; fill: #666 }
  .grid { stroke: #ddd } .range { stroke: #222; stroke-width: 1.5 }
  .a0 { fill: #1668b8 } .a1 { fill: #8a93a0 } .a2 { fill: #c3c9d1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .note { fill: #aaa } .grid { stroke: #444 } .range { stroke: #eee }
    .a0 { fill: #5aa9f0 } .a1 { fill: #8a93a0 } .a2 { fill: #59616c }
    .paper { fill: #16181c }
  }
  .paper { fill: #fff }
</style>"""

Bar = tuple[str, str, float, float, float, bool]
"""Group, arm, median, smallest, largest, and whether the arm was stopped before it came there."""


LADDERS = {
    "hippocampus": {
        "regular": "ladder_hippocampus_regular",
        "algorithms": "ladder_hippocampus_algorithms_hasten",
        "hasten": "ladder_hippocampus_algorithms_hasten",
    },
    "spleen": {
        "regular": "ladder_spleen_regular_algorithms_hasten",
        "algorithms": "ladder_spleen_algorithms_hasten",
        "hasten": "ladder_spleen_algorithms_hasten",
    },
}
"""The measurement of each arm, by task: README's table and the chart read the same ones."""
ARMS = {"regular": "MONAI, regular", "algorithms": "MONAI, fast tutorial", "hasten": "Hasten"}
GROUPS = {"hippocampus": ("0.85", "Hippocampus, MR: Dice 0.85"), "spleen": ("0.90", "Spleen, made-up CT: Dice 0.90")}


def chart(book: Any) -> str:
    """Seconds to a Dice of each arm of README's table that was measured."""
    bars = [
        _timed(book, bench, arm, level, title)
        for task, (level, title) in GROUPS.items()
        for arm, bench in LADDERS[task].items()
        if book.has(bench)
    ]
    if not bars:
        benches = [bench for task in LADDERS.values() for bench in task.values()]
        raise ValueError(f"no ladder is committed: {' or '.join(dict.fromkeys(benches))}")
    hardware = next(
        book.content(each)["hardware"] for task in LADDERS.values() for each in task.values() if book.has(each)
    )
    where = hardware["card"] or f"{hardware['cores']} cores, {hardware['cpu']}"
    return draw("Seconds to a Dice", f"from process start, all included; median and range; log axis; {where}", bars)


def _timed(book: Any, bench: str, arm: str, level: str, group: str) -> Bar:
    reached, stopped = book.times(bench, arm, level)
    values = sorted([*reached, *stopped])
    bound = book.to(bench, arm, level).startswith("more than")
    return group, ARMS[arm], statistics.median(values), values[0], values[-1], bound


def draw(title: str, note: str, bars: list[Bar]) -> str:
    """Horizontal bars in groups over a logarithmic axis; a bar of an arm that never came there ends in an arrow."""
    low = 10 ** math.floor(math.log10(min(bar[3] for bar in bars)))
    high = max(bar[4] for bar in bars)
    span = math.log10(high * 1.05 / low)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(max(value, low) / low) / span

    groups = list(dict.fromkeys(bar[0] for bar in bars))

    def tone(bar: Bar) -> int:
        """Ours in colour, MONAI's fast arm in grey, the rest light."""
        return 0 if "Hasten" in bar[1] else 1 if "fast" in bar[1] else 2

    height = TOP + (len(bars) + len(groups)) * ROW + len(groups) * 10 + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(title)}</title>{STYLE}',
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="head" x="12" y="22">{escape(title)}</text>',
        f'<text class="note" x="12" y="41">{escape(note)}</text>',
    ]
    ticks = [n * 10**power for power in range(int(math.log10(low)), 6) for n in (1, 2, 5) if n * 10**power <= high]
    bottom = height - 34
    for tick in ticks:
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP - 6}" y2="{bottom}"/>')
        parts.append(f'<text class="note" x="{at}" y="{bottom + 17}" text-anchor="middle">{tick:g} s</text>')
    y = TOP
    for group in groups:
        mine = [bar for bar in bars if bar[0] == group]
        parts.append(f'<text x="12" y="{y + 15}">{escape(group)}</text>')
        y += ROW
        for bar in mine:
            parts.append(_bar(bar, y, tone(bar), x))
            y += ROW
        y += 10
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: float, tone: int, x: Any) -> str:
    _, arm, middle, low, high, stopped = bar
    width, centre = x(middle) - LEFT, y + ROW / 2
    drawn = f'<rect class="a{tone}" x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{ROW - 4}"/>'
    if not stopped and high > low:
        drawn += f'<path d="M{x(low):.1f} {centre}H{x(high):.1f}" class="range"/>'
    text = f"over {middle:.0f} s, stopped" if stopped else f"{middle:.0f} s"
    label = f'<text class="note" x="{LEFT - 8}" y="{centre + 4}" text-anchor="end">{escape(arm)}</text>'
    at = (x(middle) if stopped else x(high)) + 6
    return f'{drawn}{label}<text x="{at:.1f}" y="{centre + 4}">{text}</text>'
