"""Rules that hold for a run of Hasten's own and for anybody's script: what counts, its cost, and its cure's gain.

Whoever measured it gives the seconds and the words.
"""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of

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


def part(cost_s: float, step_s: float, least: float, *, saved_s: float | None = None, **texts: str) -> list[Finding]:
    """A part of the step from `least` of it on. saved_s: what the cure leaves out; all of it if not given."""
    if step_s <= 0 or cost_s < least * step_s:
        return []
    gain = gain_of(cost_s if saved_s is None else max(0.0, saved_s), step_s)
    return [Finding(cost_s=cost_s, gain=gain, **texts)]  # type: ignore[arg-type]
