"""What a claim of a tuning guide is, what measuring it gives, and when it is said to hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch.utils._pytree import tree_leaves

from hasten.observe.compare import Compared, Comparison, compare
from hasten.observe.cpu_load import LoadMeter

TUNING = "PyTorch Performance Tuning Guide (S. Migacz)"
SLIDES = "PyTorch Performance Tuning Guide, slides of ECCV 2020 and GTC 2021 (S. Migacz, NVIDIA)"
MONAI = "MONAI Fast Model Training Guide"
NVIDIA = "NVIDIA DeepLearningExamples"
"""The guides that the claims are taken from."""
Verdict = Literal["holds", "does not hold", "can't tell", "not measured"]
StudyRequest = Literal["faster", "not slower", "slower"]
_OVERTIME = 1.5
"""A round is not finished past this many times the budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a claim may spend, and on which device."""

    seconds: float = 8.0
    """Within which preparation and rounds are to stay; a round that was begun is finished."""
    quick: bool = False
    """Smallest sizes and a single round, which says nothing about speed: for tests."""
    device: str = "cpu"
    begun: float = field(default_factory=time.perf_counter)

    def size(self, full: int, quick: int, *, cuda: int | None = None) -> int:
        """The size to measure at."""
        if self.quick:
            return quick
        return full if cuda is None or self.device == "cpu" else cuda

    def within(self, tolerance: float) -> float:
        """What results may differ by: more on a GPU, where convolutions may be done in TF32."""
        return tolerance if self.device == "cpu" else max(tolerance, 2e-2)

    @property
    def backend(self) -> str:
        """Of torch.compile: quick tests only trace."""
        return "eager" if self.quick else "inductor"

    def sync(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def compare(self, arms: Mapping[str, Callable[[], object]], *, base: str) -> Comparison:
        """The arms in turns, within what is left of the time.

        Raises TimeoutError where a machine is so slow, or so busy, that the time is far over within the first round.
        """
        left = max(0.5, self.seconds - (time.perf_counter() - self.begun))
        rounds = (1, 1) if self.quick else (6, 24)
        timed = {name: partial(self._in_time, arm) for name, arm in arms.items()}
        return compare(timed, base=base, sync=self.sync, rounds=rounds, seconds=left, meter=LoadMeter())

    def _in_time(self, arm: Callable[[], object]) -> object:
        if not self.quick and time.perf_counter() - self.begun > _OVERTIME * self.seconds:
            raise TimeoutError
        return arm()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What was found about a claim."""

    verdict: Verdict
    measured: str = ""
    """The figure with its interval and the arm that it belongs to, in words; empty where nothing was measured."""
    why: str = ""
    """What the verdict lacks, or why nothing was measured."""
    note: str = ""
    """What else was found: other arms, memory."""
    comparison: Comparison | None = None
    difference: float | None = None
    """Greatest difference between the results of the arms, as a share of the largest value; None if not compared."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes at most by arm, where the claim is about memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guidance:
    """One claim."""

    name: str
    """Short and stable, such as `fused-gelu`."""
    claim: str
    source: str
    """The guide's name and section."""
    run: Callable[[Budget], Outcome]
    published: str = ""
    """The guide's own figure with its hardware; empty where it gives none."""
    needs: str = ""
    """What the machine must have, as `missing` in `benchmarks.guide.run` knows it; empty for none."""
    setup_s: float = 1.0
    """About how many seconds pass before the first round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A claim with what came of it."""

    guidance: Guidance
    outcome: Outcome
    seconds: float
    """That the measurement took."""


def judged(
    comparison: Comparison,
    *,
    advised: Sequence[str] = (),
    wanted: StudyRequest = "faster",
    difference: float | None = None,
    tolerance: float = 1e-4,
    note: str = "",
) -> Outcome:
    """Whether the best of the `advised` arms (by default all but the base) is what the claim says.

    wanted: `slower` for claims about what costs time, whose arms do what the guide advises against. A claim whose arms'
    results differ by more than `tolerance` does not hold, however fast they are.
    """
    arms = [comparison.arms[name] for name in advised or comparison.arms]
    sign = -1 if wanted == "slower" else 1
    arms.sort(key=lambda arm: sign * arm.gain, reverse=True)
    good = {"faster": ("faster",), "not slower": ("faster", "same"), "slower": ("slower",)}[wanted]
    held = [arm for arm in arms if arm.verdict in good]
    unclear = [arm for arm in arms if arm.verdict == "unclear"]
    shown = (held or unclear or arms)[0]
    verdict: Verdict = "holds" if held else "can't tell" if unclear else "does not hold"
    why = shown.why if verdict == "can't tell" else ""
    if difference is not None and not difference <= tolerance:
        why = f"the arms' results differ by {difference:.1e} of the largest value"
        verdict = "does not hold"
    others = [f"{arm.arm}: {with_interval(arm)}" for arm in comparison.arms.values() if arm is not shown]
    return Outcome(
        verdict=verdict,
        measured=f"{with_interval(shown)}, {shown.arm}",
        why=why,
        note="; ".join(filter(None, [*others, note])),
        comparison=comparison,
        difference=difference,
    )


def with_interval(arm: Compared) -> str:
    """A gain and its interval."""
    return f"{arm.gain:.2f}x ({arm.low:.2f} to {arm.high:.2f})"


def unmeasured(why: str) -> Outcome:
    """Nothing was measured."""
    return Outcome(verdict="not measured", why=why)


def apart(one: object, other: object) -> float:
    """Greatest absolute difference of two trees of tensors, as a share of the largest absolute value of the first.

    Infinite where the shapes differ or a value is no number.
    """
    firsts, seconds = (
        [leaf.detach().double().cpu() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        for tree in (one, other)
    )
    if [leaf.shape for leaf in firsts] != [leaf.shape for leaf in seconds]:
        return float("inf")
    largest = max((float(leaf.abs().max()) for leaf in firsts if leaf.numel()), default=0.0)
    differences = [float((a - b).abs().max()) for a, b in zip(firsts, seconds, strict=True) if a.numel()]
    if any(difference != difference for difference in differences):
        return float("inf")
    return max(differences, default=0.0) / (largest or 1.0)
