"""What a study finds: one thing that costs time, where it is, what it costs here, and its cure.

The thresholds apply to Hasten's own runs and to any script; the caller supplies the measured seconds and the texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["finding", "note"]
"""A `note` costs nothing measurable on this machine, but would on other hardware."""
WAITS = 0.10
"""Share of a step from which waiting for data, copies or augmentation is a finding; below it little can be gained."""
READS = 0.05
"""Share of a step from which device values that the host reads in every step are a finding."""
VALIDATION = 0.20
CHECKPOINTS = 0.08
"""Shares from which validations and checkpoints, which stop the training between steps, are a finding."""
FASTER = 1.10
"""Factor from which another precision or memory format is recommended on a few measurements."""
DOUBLED = 1.5
"""Fixed costs dominate if a step on twice the samples takes less than this many times as long."""
DOUBLED_ON_CPU = 1.15
"""Factor that replaces `DOUBLED` on a CPU, where a larger batch may also use idle cores."""
AS_LONG = 0.95
"""Factor below which twice the samples are faster than one: another kernel is taken then, and no fixed cost shows."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A cure as a change of calls at a line of the script: arguments that are set; of none, the statement goes."""

    calls: tuple[str, ...]
    """Last names of what is called there, such as `DataLoader`."""
    keywords: tuple[tuple[str, str], ...] = ()
    """Names and values, as source text."""

    @property
    def text(self) -> str:
        """The change in one line: `DataLoader(..., prefetch_factor=4)`."""
        return f"{self.calls[0]}(..., {', '.join(f'{name}={value}' for name, value in self.keywords)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """Ready for JSON by `dataclasses.asdict`. The first four do not depend on a measurement."""

    name: str
    """Short and stable, for programs, such as `no-workers`."""
    title: str
    """What is wrong, in a sentence without numbers."""
    cure: str
    """The remedy in one line."""
    edit: Edit | None = None
    """Change of the script's own lines that the cure is, if it is one."""
    where: str = ""
    """`train.py:31` in a script, a run's setting (`sample.batch_size`), or "" if it concerns the machine."""
    diff: tuple[str, ...] = ()
    """What `edit` makes of them, as lines of a unified diff; empty where that is not certain."""
    evidence: str = ""
    """The measured numbers behind it, in words."""
    cost_s: float | None = None
    """Seconds it takes in a training step (rare events are spread over the steps); None if not measured."""
    gain: float | None = None
    """Predicted speed-up of the training once cured, such as 1.5; None if unknown."""
    interval: tuple[float, float] | None = None
    """Ends of what holds the gain with about 95 % confidence; None if its measurement was not repeated."""
    level: Level = "finding"


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Largest predicted gain first, then findings without one by their cost, notes last."""

    def place(finding: Finding) -> tuple[bool, float, float]:
        gain = -math.inf if finding.gain is None else finding.gain
        return finding.level == "note", -gain, -(finding.cost_s or 0.0)

    return sorted(findings, key=place)


def gain_of(cost_s: float, step_s: float) -> float:
    """Speed-up if `cost_s` of a step of `step_s` seconds went away: at most 20, as no measurement is more exact."""
    return min(20.0, step_s / max(step_s - cost_s, step_s / 20)) if step_s > 0 else 1.0


def ms(seconds: float) -> str:
    """A short time, rounded to its significant digits."""
    value = 1e3 * seconds
    if value >= 10_000:
        return f"{seconds:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.3f} ms"
