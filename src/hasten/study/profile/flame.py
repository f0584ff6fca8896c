"""A flame graph, callers on top, as SVG that fits any width."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from hasten.observe.ranges import PHASES
from hasten.report.words import short_duration
from hasten.study.profile.recording import MODULE, STEP, Node, ProfileRecording

_ROW = 22
"""Height of a level in px."""
_DEPTH = 14
_LEAST = 0.002
"""Share of the whole below which a box is left out: it would be narrower than a pixel or two."""


@dataclass(slots=True)
class Box:
    """All calls of one name under the same callers; ns."""

    name: str
    time: int = 0
    calls: int = 0
    children: dict[str, Box] = field(default_factory=dict)


def flame_of(recording: ProfileRecording) -> Box:
    """The calls of the training's thread: phases, in them transforms and modules, in these operations."""
    whole = Box("all", time=recording.wall, calls=1)
    stack = [(root, whole) for root in reversed(recording.main)]
    while stack:
        node, parent = stack.pop()
        inner = parent if node.name == STEP else _into(node, parent)
        stack += [(child, inner) for child in reversed(node.children)]
    return whole


def _into(node: Node, parent: Box) -> Box:
    # The enclosing box shows the module's path already.
    name = node.short.rpartition(".")[2] if node.name.startswith(MODULE) else node.short
    if name == parent.name:
        return parent  # autograd's call of a function, and the function
    box = parent.children.setdefault(name, Box(name))
    box.time += node.time
    box.calls += 1
    return box


def flame_svg(whole: Box, *, describe: str) -> str:
    """An <svg> element as wide as its place; its boxes' texts keep their size and are cut off at the box's end.

    Each box shows its name, time, share and calls in a tooltip.
    """
    parts: list[str] = []
    depth = _draw(whole, 0.0, 100.0, 0, _hues(whole), whole.time or 1, "--rest", parts)
    height = _ROW * (depth + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(describe)}" width="100%" '
        f'height="{height}" style="display:block;font-size:12px">{"".join(parts)}</svg>'
    )


def _hues(whole: Box) -> dict[str, str]:
    """A colour for each phase, the same on every page."""
    names = [*PHASES, *(name for name in whole.children if name not in PHASES)]
    return {name: f"--c{number % 8 + 1}" for number, name in enumerate(names)}


def _draw(
    box: Box, left: float, width: float, level: int, hues: dict[str, str], whole: int, hue: str, into: list[str]
) -> int:
    """Adds a box and all below it; returns the deepest level drawn. left, width: per cent."""
    share = box.time / whole
    calls = f"{box.calls} {'call' if box.calls == 1 else 'calls'}"
    tooltip = f"{box.name}: {short_duration(1e-9 * box.time)}, {share:.1%}, {calls}"
    strength = max(20, 62 - 7 * level)  # pale enough for text in the page's ink, in the light and in the dark
    fill = f"color-mix(in oklab, var({hue}) {strength}%, var(--paper))" if level else "var(--line)"
    label = f'<text x="4" y="15" fill="var(--ink)">{escape(_label(box, share))}</text>' if width > 1.2 else ""
    into.append(
        f'<svg x="{left:.3f}%" y="{level * _ROW}" width="{width:.3f}%" height="{_ROW}"><title>{escape(tooltip)}</title>'
        f'<rect width="100%" height="{_ROW - 1}" fill="{fill}" stroke="var(--paper)" stroke-width="1"/>{label}</svg>'
    )
    deepest, at = level, left
    if level + 1 >= _DEPTH or not box.time:
        return deepest
    inner = sum(child.time for child in box.children.values())
    scale = width / max(box.time, inner, 1)
    for child in box.children.values():
        if child.time < _LEAST * whole:
            continue
        child_width = scale * child.time
        below = hues.get(child.name, hue) if level == 0 else hue
        deepest = max(deepest, _draw(child, at, child_width, level + 1, hues, whole, below, into))
        at += child_width
    return deepest


def _label(box: Box, share: float) -> str:
    return f"{box.name} {share:.0%}" if share >= 0.01 else box.name
