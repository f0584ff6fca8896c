"""What a study finds: one thing that costs time, where it is, what it costs here, and its cure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["finding", "note"]
"""A `note` costs nothing measurable here, and would on other hardware."""


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
