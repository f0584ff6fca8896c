"""The wall time of a training by part, and its bottleneck in one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hasten.doctor.finding import AS_LONG, DOUBLED, DOUBLED_ON_CPU

Bound = Literal["input", "launch", "compute", "sync", "validation", "checkpoint"]

PARTS: dict[str, str] = {
    "prepare": "preparing cases",
    "wait": "waiting for data",
    "host_to_device": "copies to the device",
    "sample": "cropping and augmenting",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "device_reads": "reading device values on the host",
    "gradient_sync": "waiting for other ranks",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "overhead": "interpreter and kernel launches",
}
"""Parts in the order in which a step goes through them, and their words."""

GROUPS: dict[Bound, tuple[str, ...]] = {
    "input": ("prepare", "wait", "host_to_device", "sample"),
    "sync": ("device_reads", "gradient_sync"),
    "validation": ("validation",),
    "checkpoint": ("checkpoint",),
    "launch": ("overhead",),
}
"""Parts that aren't compute, which could in principle be hidden or left out."""

_LAUNCHES = 0.05
"""Seconds of a step on a CPU above which launching its operators can't rule it: a thousand take some milliseconds."""
_WORTH = 0.10
"""Share of the wall time from which a verdict of compute also names the largest other group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Mean seconds of a step by part. The parts add up to `step_s`."""

    steps: int
    step_s: float
    """Wall seconds a step, everything between the steps (validation, checkpoints) spread over them."""
    parts: dict[str, float]
    fixed_batch_s: float | None = None
    """Ablation: seconds of a step on one fixed batch, the compute floor."""
    feed_alone_s: float | None = None
    """Ablation: seconds of a batch without a step, the data's ceiling."""
    doubled: float | None = None
    """Time of a step on twice the samples over that of a step; near 1 where fixed costs dominate."""
    on_cpu: bool = False
    """Whether a CPU trains."""

    @property
    def floor_note(self) -> str:
        """What a step on a fixed batch says. It is timed apart, so it may come out above the step itself."""
        if self.fixed_batch_s is None or self.fixed_batch_s <= self.step_s:
            return "the compute floor"
        return "timed apart, when the machine was slower: compute takes all of a step"

    def share(self, bound: Bound) -> float:
        """Share of the wall time."""
        return sum(self.parts.get(name, 0.0) for name in GROUPS[bound]) / self.step_s if self.step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    bound: Bound
    sentence: str
    measure: str
    """What it is judged by, in a few words."""
    evidence: tuple[str, ...] = field(default=())


def diagnose(split: Split) -> Diagnosis:
    """Name the bottleneck: the largest group of parts, or else the kind of compute that limits the step."""
    shares = {bound: split.share(bound) for bound in GROUPS}
    rest = 1 - sum(shares.values())
    worst = max(shares, key=lambda bound: shares[bound])
    evidence = _evidence(split)
    largest = max(GROUPS[worst], key=lambda name: split.parts.get(name, 0.0))
    into = f"{PARTS[largest]}{' and what belongs to it' if len(GROUPS[worst]) > 1 else ''}"
    if shares[worst] >= rest:
        sentence = f"The training is {worst}-bound: {shares[worst]:.0%} of its time goes into {into}."
        return Diagnosis(worst, sentence, f"{shares[worst]:.0%} of the time", evidence)
    itself = f"the step itself is {rest:.0%} of the time"
    more = f"; {shares[worst]:.0%} goes into {into}" if shares[worst] >= _WORTH else ""
    least, most = AS_LONG, DOUBLED_ON_CPU if split.on_cpu else DOUBLED
    launches = not split.on_cpu or rest * split.step_s < _LAUNCHES
    if split.doubled is not None and launches and least <= split.doubled < most:
        return Diagnosis(
            "launch",
            f"The training is launch-bound: a step on twice the samples takes only {split.doubled:.2f} times as long, "
            f"so fixed costs rule; the batch is too small{more}.",
            f"twice the samples: {split.doubled:.2f} times as long; {itself}",
            evidence,
        )
    sentence = f"The training is compute-bound: {rest:.0%} of its time is the step itself{more}."
    return Diagnosis("compute", sentence, itself, evidence)


def _evidence(split: Split) -> tuple[str, ...]:
    texts = [f"{split.steps} steps of {1e3 * split.step_s:.1f} ms"]
    shares = [(name, split.parts[name]) for name in PARTS if split.parts.get(name, 0.0) >= 0.01 * split.step_s]
    texts.append(", ".join(f"{PARTS[name]} {value / split.step_s:.0%}" for name, value in shares))
    if split.fixed_batch_s is not None:
        texts.append(f"on one fixed batch a step takes {1e3 * split.fixed_batch_s:.1f} ms ({split.floor_note})")
    if split.feed_alone_s is not None:
        texts.append(f"with no step a batch takes {1e3 * split.feed_alone_s:.1f} ms")
    if split.doubled is not None:
        texts.append(f"a step on twice the samples takes {split.doubled:.2f} times as long")
    return tuple(texts)
