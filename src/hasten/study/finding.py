"""What a study finds: one thing that costs time, where it is, what it costs here, and its cure.

The limits hold for a run of Hasten's own and for anybody's script; whoever measured it gives the seconds and the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["finding", "note"]
"""A `note` costs nothing measurable here, and would on other hardware."""
WAITS = 0.10
"""Share of the time from which waiting for data, copies or augmentation is a finding: below it, little is to be had."""
READS = 0.05
"""The same for values of the device that the host reads in every step."""
VALIDATION = 0.20
CHECKPOINTS = 0.08
"""The same for what stops the training between its steps."""
FASTER = 1.10
"""Factor from which another precision or memory format is recommended on a few measurements."""
DOUBLED = 1.5
"""A step on twice the samples that takes less than this many times as long is ruled by its fixed costs."""
DOUBLED_ON_CPU = 1.15
"""The same on a CPU, where a second sample may also put idle cores to work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Ready for JSON by `dataclasses.asdict`."""

    name: str
    """Short and stable, for programs, such as `no-workers`."""
    title: str
    """What is wrong, in a sentence without its numbers."""
    where: str
    """`train.py:31` of a script, the setting of a run (`sample.batch_size`), or "" if it is the machine's."""
    cure: str
    """One line that can be done."""
    evidence: str = ""
    """The measured numbers behind it, in words."""
    cost_s: float | None = None
    """Seconds of a training step that it takes now (rare events spread over the steps); None if it wasn't measured."""
    gain: float | None = None
    """Predicted factor on the training's speed when cured, 1.5 for half as fast again; None if not known here."""
    level: Level = "finding"


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Largest predicted gain first; what has none after those, by its cost; notes last."""

    def place(finding: Finding) -> tuple[bool, float, float]:
        gain = -math.inf if finding.gain is None else finding.gain
        return finding.level == "note", -gain, -(finding.cost_s or 0.0)

    return sorted(findings, key=place)


def gain_of(cost_s: float, step_s: float) -> float:
    """Speed gained if `cost_s` of a step of `step_s` seconds went away: at most 20, as no measurement is that exact."""
    return min(20.0, step_s / max(step_s - cost_s, step_s / 20)) if step_s > 0 else 1.0


def part(cost_s: float, step_s: float, least: float, *, saved_s: float | None = None, **texts: str) -> list[Finding]:
    """A part of the step from `least` of it on. saved_s: what the cure leaves out; all of it if not given."""
    if step_s <= 0 or cost_s < least * step_s:
        return []
    gain = gain_of(cost_s if saved_s is None else max(0.0, saved_s), step_s)
    return [Finding(cost_s=cost_s, gain=gain, **texts)]  # type: ignore[arg-type]


def ms(seconds: float) -> str:
    """A short time, rounded to its significant digits."""
    value = 1e3 * seconds
    if value >= 10_000:
        return f"{seconds:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.3f} ms"
