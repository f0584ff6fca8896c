"""The ladder in one drawing: time to the target, rung by rung, with the dot of each seed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from benchmarks.ladder.outcome import Time
from hasten.report import words
from hasten.report.model import Key

_WIDTH, _ROW, _TOP = 480, 36, 30
_LEFT, _RIGHT = 8, 400
_TICKS = tuple(step * 10**power for power in range(6) for step in (1, 3))


@dataclass(frozen=True, slots=True)
class Bar:
    """A rung's median time, or lower bound, and that of each seed."""

    label: str
    median: Time
    times: Sequence[Time]
    ours: bool


def ladder(bars: Sequence[Bar], describe: str) -> str:
    """An <svg> for a page of ours: a bar from the left to each median, on a logarithmic axis of seconds.

    A bar that ends in an arrow is a lower bound. Empty if there is nothing to draw.
    """
    if not bars:
        return ""
    seconds = [time.seconds for bar in bars for time in (bar.median, *bar.times) if time.seconds > 0]
    if not seconds:
        return ""
    low = 10 ** math.floor(math.log10(min(seconds)))
    high = max(seconds) * 1.1
    height = _TOP + _ROW * len(bars) + 4

    def at(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log(max(value, low) / low) / math.log(high / low)

    drawn = []
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        x = at(tick)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 4}" style="stroke:var(--line)"/>')
        anchor = "start" if x < _LEFT + 12 else "middle"
        drawn.append(
            f'<text x="{x:.1f}" y="14" text-anchor="{anchor}" style="fill:var(--muted)">{_seconds(tick)}</text>'
        )
    for number, bar in enumerate(bars):
        drawn += _row(bar, _TOP + _ROW * number, at)
    return (
        f'<svg class="figure" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(describe)}"'
        f' font-size="13">{"".join(drawn)}</svg>'
    )


def _row(bar: Bar, top: float, at: object) -> list[str]:
    assert callable(at)
    color = "var(--c2)" if bar.ours else "var(--rest)"
    end, middle = at(bar.median.seconds), top + 25
    drawn = [
        f'<text x="{_LEFT}" y="{top + 12:.1f}" style="fill:var(--ink)">{escape(bar.label)}</text>',
        f'<rect x="{_LEFT}" y="{middle - 7}" width="{max(1.0, end - _LEFT):.1f}" height="14" style="fill:{color}"/>',
    ]
    if not bar.median.reached:
        drawn.append(f'<path d="M{end:.1f} {middle - 7} l9 7 l-9 7 z" style="fill:{color}"/>')
    for time in bar.times:
        fill = "var(--ink)" if time.reached else "var(--paper)"
        drawn.append(f'<circle cx="{at(time.seconds):.1f}" cy="{middle}" r="3" style="fill:{fill};stroke:var(--ink)"/>')
    last = max(at(time.seconds) for time in (bar.median, *bar.times)) + (14 if not bar.median.reached else 8)
    drawn.append(f'<text x="{last:.1f}" y="{middle + 4}" style="fill:var(--ink)">{escape(str(bar.median))}</text>')
    return drawn


def _seconds(value: float) -> str:
    return f"{value:g} s" if value < 600 else words.duration(value)


def alone(svg: str, title: str, keys: Sequence[Key] = ()) -> str:
    """The drawing as a file of its own, on white, with its title and the legend `keys` above."""
    box = svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0]
    width, height = (float(side) for side in box.split())
    above = 26 + 18 * len(keys)
    head = f'<text x="{_LEFT}" y="18" font-size="14" font-weight="600" fill="var(--ink)">{escape(title)}</text>'
    head += "".join(_legend(key, 36 + 18 * place) for place, key in enumerate(keys))
    inner = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {width:g} {height + above:g}" width="{1.5 * width:g}"'
        f' font-family="system-ui, sans-serif" font-size="13"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{head}<g transform="translate(0 {above})">{inner}</g>'
        "</svg>\n"
    )
    for name, color in _light_colors().items():
        text = text.replace(f"var({name})", color)
    return text


def _light_colors() -> dict[str, str]:
    """Those of the pages' light sheet, by the name of their variable."""
    sheet = (resources.files("hasten.report") / "style.css.j2").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[\w-]+): (#\w+)", sheet.partition("}")[0]))


def _legend(key: Key, y: float) -> str:
    dashes = ' stroke-dasharray="5 4"' if key.dashed else ""
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + 22}" y1="{y - 4}" y2="{y - 4}" stroke-width="2"{dashes}'
        f' style="stroke:var({key.color})"/>'
        f'<text x="{_LEFT + 30}" y="{y}" fill="var(--muted)">{escape(key.name)}</text>'
    )
