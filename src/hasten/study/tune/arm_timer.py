"""Compares settings on this machine: builds them, checks that their numbers agree, and times them interleaved."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hasten.engine.measure import Trace, agrees
from hasten.engine.out_of_memory import out_of_memory
from hasten.nets.random_state import random_state_kept
from hasten.observe.compare import Compared, Comparison, compare
from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.study.tune.arm_builder import Arm, ArmBuilder
from hasten.study.tune.search import TRAINS, ArmResult, Kind, SearchStage
from hasten.study.tune.setting import Setting

_ROUNDS = 7
"""Rounds that a verdict needs, including the unrecorded one."""
_FEWEST = 5
"""Rounds below which no verdict is given."""
_AMID_LOAD = 1.5
"""Gain or loss, at the near end of the interval, that is trusted on a busy machine."""
_HOPELESS = 2.0
"""Multiple of the fastest arm's best time from which an arm isn't timed again."""
_SPREAD = 0.25
"""Spread of one setting's times from which a machine counts as busy, whatever its load."""
_COMPILE_S = 30.0
"""Assumed seconds for compiling a network, until one was compiled."""
_SAME_LABELS = 0.999
"""Share of the voxels that must keep their label with sums of another type."""
_RUN_S = 1.0
"""Approximate limit for one timed run with batches."""
_STEP_S = 0.1
"""Steps that are shorter are timed several at a time."""


class ArmTimer:
    """`measure`, `cost` and `ceiling` of a search, for the run of an ArmBuilder."""

    def __init__(self, builder: ArmBuilder, start: Setting, *, meter: LoadMeter | None = None) -> None:
        self.builder, self.start, self.meter = builder, start, meter
        self.compile_s = _COMPILE_S
        self.build_s = 1.0
        self._step_s: float | None = None
        self._ready: dict[tuple[Kind, Setting], Arm] = {}
        self._compiled: set[Setting] = set()

    # For the search

    def measure(
        self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float
    ) -> Mapping[Setting, ArmResult]:
        """Raises ValueError if the base itself does not run."""
        begin = time.perf_counter()
        if self._step_s is None:
            self.prepare()
        self._forget(base)
        results: dict[Setting, ArmResult] = {}
        # Copies of one network are compiled again and again, and by default torch gives up at the ninth.
        with random_state_kept(self.builder.device), torch._dynamo.config.patch(recompile_limit=256):
            short = self.cost(kind, base, arms[:1]) > seconds
            reference = self._base(kind, base)
            agreed: dict[Setting, str] = {}
            for number, setting in enumerate(arms):
                # Compiling may take longer than estimated, and what was built must still be timed.
                elapsed = time.perf_counter() - begin
                if number and elapsed + self.cost(kind, base, arms[: number + 1]) > seconds:
                    break
                built = self._built(kind, setting)
                if isinstance(built, ArmResult):
                    results[setting] = built
                    continue
                same = base["batch_size"] == setting["batch_size"]
                sound, text = _agreement(kind, built.trace, reference.trace, same=same)
                if sound:
                    agreed[setting] = text
                else:
                    results[setting] = ArmResult(outcome="disagreed", agreement=text, why=text, once=built.once)
                    del self._ready[kind, setting]
            if agreed:
                # Time it even if compiling took long, or the compiling would have been wasted.
                needed = 1.0 if short else 1.2 * _ROUNDS * self.unit(kind) * (1 + len(agreed))
                remaining = max(needed, seconds - (time.perf_counter() - begin))
                compared = self._compare(kind, base, list(agreed), remaining)
                for number, (setting, agreement) in enumerate(agreed.items()):
                    arm = self._ready[kind, setting]
                    results[setting] = _measured(compared, f"arm {number}", agreement, arm)
        return results

    def cost(self, kind: Kind, base: Setting, arms: Sequence[Setting]) -> float:
        """Seconds for building the arms and for the fewest rounds that allow a verdict."""
        if not arms:
            return 0.0
        kinds = TRAINS if kind in TRAINS else (kind,)
        new = [setting for setting in (base, *arms) if not any((one, setting) in self._ready for one in kinds)]
        timed = _ROUNDS * self.unit(kind) * (1 + len(arms))
        return timed + sum(self.build_s + self._compile_cost(setting) for setting in new)

    def ceiling(self, stage: SearchStage, base: Setting) -> tuple[float, str] | None:
        """What batches could gain if they cost nothing; None for other stages, and on a busy machine."""
        if stage.kind != "run":
            return None
        if self._step_s is None:
            self.prepare()
        meter = self.meter or LoadMeter()
        with random_state_kept(self.builder.device), torch._dynamo.config.patch(recompile_limit=256):
            alone, whole = self._base("step", base), self._base("run", base)
            meter.others()
            step = min(alone.call() for _ in range(4))
            run = min(whole.call() for _ in range(2))
        if meter.others() > BUSY:
            return None
        most, share = run / step, max(0.0, 1 - step / run)
        return most, f"batches take {share:.0%} of a step: leaving them out altogether would gain {max(1, most):.2f}"

    # Building and timing

    def _compile_cost(self, setting: Setting) -> float:
        again = 0.3 if setting in self._compiled else 1.0  # torch keeps its kernels on the disk
        programs = (setting["compile"] != "off") + bool(setting["batch_program"])
        return again * programs * self.compile_s

    def _forget(self, base: Setting) -> None:
        """Free all arms but the base and the start, which is needed again at the end."""
        self._ready = {key: arm for key, arm in self._ready.items() if key[1] in (base, self.start)}
        gc.collect()

    def prepare(self) -> float:
        """Build the start and time its step, which determines how many steps are timed as one.

        Raises ValueError if it does not run.
        """
        with random_state_kept(self.builder.device), torch._dynamo.config.patch(recompile_limit=256):
            arm = self._base("step", self.start)
            self._step_s = min(arm.call() for _ in range(2))
        self.builder.run_steps = max(2, min(16, int(_RUN_S / self._step_s)))
        self.builder.repeats = max(1, min(32, int(_STEP_S / self._step_s)))
        self._ready.clear()
        return self._step_s

    def unit(self, kind: Kind) -> float:
        """About how many seconds one timed call takes."""
        step = self._step_s if self._step_s is not None else self.prepare()
        if kind == "run":
            return 1.2 * step * self.builder.run_steps
        if kind != "validate":
            return step * self.builder.repeats if kind == "step" else 0.5 * step
        planned = self.builder.planned
        arena = self.builder.arena(str(self.start["home"]))
        voxels = sum(math.prod(arena.shapes[case]) for case in self.builder.timed_cases(arena))
        trained = math.prod(planned.config.sample.patch) * self.builder.batch_size
        # A forward pass is a third of a step, and windows overlap.
        return step / 3 * voxels / trained / (1 - planned.config.infer.overlap) ** 2

    def _base(self, kind: Kind, base: Setting) -> Arm:
        built = self._built(kind, base)
        if isinstance(built, ArmResult):
            raise ValueError(f"the run as it is can't be measured: {built.why}")
        return built

    def _built(self, kind: Kind, setting: Setting) -> Arm | ArmResult:
        if (kind, setting) in self._ready:
            return self._ready[kind, setting]
        begin = time.perf_counter()
        others = [self._ready[one, setting] for one in TRAINS if (one, setting) in self._ready]
        try:
            if kind in TRAINS and others and others[0].sibling is not None:
                built = others[0].sibling(kind)
            else:
                built = self.builder.build(kind, setting)
        except Exception as error:
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            return ArmResult(outcome="failed", why="out of memory" if out_of_memory(error) else reason)
        self._ready[kind, setting] = built
        if built.once and not others:
            self.compile_s = built.once if setting not in self._compiled else self.compile_s
            self._compiled.add(setting)
        if not others:
            self.build_s = max(0.1, time.perf_counter() - begin - built.once)
        return built

    def _compare(self, kind: Kind, base: Setting, arms: list[Setting], seconds: float) -> Comparison:
        calls: dict[str, Callable[[], float]] = {"base": self._ready[kind, base].call}
        calls |= {f"arm {number}": self._ready[kind, setting].call for number, setting in enumerate(arms)}
        return compare(calls, base="base", seconds=seconds, hopeless=_HOPELESS, meter=self.meter)


def _measured(compared: Comparison, name: str, agreement: str, arm: Arm) -> ArmResult:
    judged: Compared = compared.arms[name]
    outcome, why, rounds = judged.verdict, judged.why or arm.note, len(compared.seconds[name])
    busy = compared.busy
    if rounds > 1 and judged.high < 1 / _AMID_LOAD:
        outcome, busy, why = "slower", False, arm.note
    elif busy and rounds >= _FEWEST and judged.low > _AMID_LOAD:
        outcome, busy, why = "faster", False, "far enough ahead to be told beside other programs"
    elif not busy and rounds < _FEWEST:
        why = f"there was time for {rounds} rounds only"
    elif not busy and _spread(compared.seconds["base"]) > _SPREAD:
        share = _spread(compared.seconds["base"])
        outcome, busy, why = "unclear", True, f"the base's own times spread by {share:.0%}, as on a busy machine"
    return ArmResult(
        outcome=outcome, gain=judged.gain, low=judged.low, high=judged.high, seconds=judged.arm_s,
        base_seconds=judged.base_s, agreement=agreement, why=why, busy=busy, once=arm.once,
    )  # fmt: skip


def _spread(times: list[float]) -> float:
    """The middle half of the times, as a share of their median."""
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return (third - first) / middle


def _agreement(kind: Kind, trace: Trace, reference: Trace, *, same: bool) -> tuple[bool, str]:
    """Whether the numbers agree with the base's within lower precision, and how far they differ."""
    if kind == "validate":
        share = float((trace[0] == reference[0]).float().mean())
        return share >= _SAME_LABELS, f"{share:.2%} of the labels are the same"
    if not same:
        finite = bool(torch.isfinite(torch.stack(list(trace))).all())
        return finite, "another batch, so that its loss is not compared" if finite else "its loss is not finite"
    if kind == "update":
        return agrees(trace, reference), f"the weights move {_difference(trace[0], reference[0])}"
    text = f"loss {_difference(trace[0], reference[0])}, gradient norm {_difference(trace[1], reference[1])}"
    return agrees(trace, reference), text


def _difference(value: Tensor, reference: Tensor) -> str:
    off = float((value - reference).abs() / reference.abs().clamp(min=1e-12))
    return f"{100 * off:.2g} % off" if math.isfinite(off) else "not finite"
