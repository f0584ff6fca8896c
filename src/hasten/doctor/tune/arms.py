"""Settings built as `train` would, checked for agreement with the base, and timed interleaved with it."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.doctor.run.probes import first_batch
from hasten.doctor.training import (
    RunComponents,
    RunPlan,
    Trace,
    TrainStep,
    agrees,
    arena_of,
    compose_run,
    loss_and_gradient,
    out_of_memory,
    predicted_labels,
    synchronize,
    with_train,
)
from hasten.doctor.tune.search import ArmResult, Kind, Setting
from hasten.feed.feed import Feed
from hasten.nets.random_state import random_state_kept
from hasten.observe.clock import Clock
from hasten.observe.compare import Comparison, compare
from hasten.observe.cpu_load import LoadMeter

_RATE = 1e-12
"""Learning rate of timed steps: the weights stay the same, so that losses can be compared."""
_CASES = 4
"""Largest number of validation cases in one timed validation."""
_RUN_S = 1.0
"""Approximate limit for one timed run of steps."""
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
"""Share of the voxels that must keep their label in windows of another batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One setting, ready to be timed."""

    call: Callable[[], float]
    """Seconds of a step, or of one validation."""
    trace: Trace
    """Compared with another arm's: loss and gradient norm, or labels and their number."""
    once: float = 0.0
    """Seconds that compiling took."""


class Arms:
    """Builds and times settings of one run. Patches of one size: the smaller ones of stages take little of its time."""

    def __init__(self, planned: RunPlan, start: Setting, *, meter: LoadMeter | None = None) -> None:
        sample = dataclasses.replace(planned.config.sample, stages=(), fit_batch=False)
        self.planned = dataclasses.replace(planned, config=dataclasses.replace(planned.config, sample=sample))
        self.start, self.device, self.meter = start, planned.device, meter
        self.arena = arena_of(self.planned)
        self.steps = 4
        """Steps of one timed run; `measure` fits them to the time of one."""
        self._ready: dict[tuple[Kind, Setting], Arm] = {}
        self._build_s, self._compile_s = 1.0, _COMPILE_S

    # Building

    def components(self, setting: Setting) -> RunComponents:
        """The run assembled as `train` does, but for compiling the network, with a negligible learning rate."""
        planned = self.planned
        sections: dict[str, dict[str, object]] = {}
        for name, value in setting.values:
            section, _, key = name.partition(".")
            sections.setdefault(section, {})[key] = value
        for section, values in sections.items():
            changed = dataclasses.replace(getattr(planned.config, section), **values)
            planned = dataclasses.replace(planned, config=dataclasses.replace(planned.config, **{section: changed}))
        with _unwarned(), random_state_kept(self.device):
            components = compose_run(with_train(planned, compile=False, learning_rate=_RATE), self.arena, Clock())
        for module in components.step.update.weights.modules():
            # Its random draws would hide differences.
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        return components

    def build(self, kind: Kind, setting: Setting) -> Arm:
        """Raises the error of a setting that doesn't work, such as a failing compiler or too little memory."""
        components = self.components(setting)
        if kind == "validate":
            return self._validation(components)
        if setting["train.capture"] and components.captured is None:
            raise ValueError("the step can't be captured in a CUDA graph here")
        if setting["sample.compile"] and not components.program.compiled:
            raise ValueError(components.program.why)
        batch, step = first_batch(components), components.step
        begin, once = time.perf_counter(), components.program.compile_seconds
        if setting["train.compile"]:
            compiled = torch.compile(step.network, dynamic=False)
            step = dataclasses.replace(step, network=compiled)  # type: ignore[arg-type]
        trace = loss_and_gradient(step, *batch)
        step(*batch, 0)
        synchronize(self.device)
        if setting["train.compile"]:
            once += time.perf_counter() - begin
        return Arm(call=self._steps(components, step), trace=trace, once=once)

    def _steps(self, components: RunComponents, step: TrainStep) -> Callable[[], float]:
        """Steps with their batches, through the feed that a run has."""
        captured, done = components.captured if step is components.step else None, 0

        def call() -> float:
            nonlocal done
            synchronize(self.device)
            begin = time.perf_counter()
            if captured is not None:
                for index in range(done, done + self.steps):
                    captured(index)
                done += self.steps
            else:
                with closing(iter(Feed(components.program, last=self.steps))) as batches:
                    for index, batch in enumerate(batches):
                        step(batch["image"], batch["label"], index)
            synchronize(self.device)
            return (time.perf_counter() - begin) / self.steps

        if captured is not None:
            while done < 8:  # through the warm-up and the capture
                call()
            if not captured.on:
                raise ValueError(captured.reason)
        return call

    def _validation(self, components: RunComponents) -> Arm:
        arena = components.arena
        cases = arena.index(tuple(case.id for case in self.planned.validation[:_CASES]))

        def call() -> float:
            synchronize(self.device)
            begin = time.perf_counter()
            predicted_labels(components, arena, cases)
            return time.perf_counter() - begin

        labels = predicted_labels(components, arena, cases)
        return Arm(call=call, trace=(labels, torch.tensor(labels.numel())))

    # Timing

    def measure(
        self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float
    ) -> Mapping[Setting, ArmResult]:
        """Measure arms, as a search's `Measure` does. Raises ValueError if the base itself does not run."""
        begin = time.perf_counter()
        first = not self._ready
        self._ready = {key: arm for key, arm in self._ready.items() if key[1] in (base, self.start)}
        gc.collect()
        results: dict[Setting, ArmResult] = {}
        agreed: dict[Setting, tuple[Arm, str]] = {}
        # Networks of one class are compiled again and again, and by default torch gives up at the ninth.
        with random_state_kept(self.device), torch._dynamo.config.patch(recompile_limit=256):
            reference, unit = self._base(kind, base)
            for number, setting in enumerate(arms):
                compiles = self._compile_s * bool(setting["train.compile"])
                needed = self._build_s + compiles + _ROUNDS * unit * (len(agreed) + 2)
                # The very first one is looked at in any case: few rounds still say whether it looks promising.
                if time.perf_counter() - begin + needed > seconds and (number or not first):
                    break
                try:
                    arm = self._built(kind, setting)
                except Exception as error:
                    results[setting] = ArmResult(outcome="failed", why=_reason(error))
                    continue
                sound, text = agreement(kind, arm.trace, reference.trace)
                if sound:
                    agreed[setting] = arm, text
                else:
                    results[setting] = ArmResult(outcome="disagreed", agreement=text, why=text, once=arm.once)
                    del self._ready[kind, setting]
            if agreed:
                calls = {"base": reference.call} | {str(at): arm.call for at, (arm, _) in enumerate(agreed.values())}
                left = max(1.0, seconds - (time.perf_counter() - begin))
                compared = compare(calls, base="base", seconds=left, hopeless=_HOPELESS, meter=self.meter)
                for at, (setting, (arm, text)) in enumerate(agreed.items()):
                    results[setting] = judged(compared, str(at), text, arm.once)
        return results

    def _base(self, kind: Kind, base: Setting) -> tuple[Arm, float]:
        """The base, and about how many seconds one timed call of it takes."""
        try:
            arm = self._built(kind, base)
        except Exception as error:
            raise ValueError(f"the run as it is can't be measured: {_reason(error)}") from error
        once = arm.call()
        if kind == "validate":
            return arm, once
        self.steps = max(2, min(16, int(_RUN_S / once)))
        return arm, once * self.steps

    def _built(self, kind: Kind, setting: Setting) -> Arm:
        if (kind, setting) not in self._ready:
            begin = time.perf_counter()
            arm = self._ready[kind, setting] = self.build(kind, setting)
            self._compile_s = arm.once or self._compile_s
            self._build_s = max(0.1, time.perf_counter() - begin - arm.once)
        return self._ready[kind, setting]


@contextmanager
def _unwarned() -> Iterator[None]:
    """Suppress warnings of assembling a run, which come again for each arm."""
    logger = logging.getLogger("hasten")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return "out of memory" if out_of_memory(error) else lines[0] if lines else type(error).__name__


def judged(compared: Comparison, name: str, agreement: str, once: float) -> ArmResult:
    """The outcome of an arm: on a busy machine only large gains and losses count."""
    one, base = compared.arms[name], compared.seconds["base"]
    outcome, why, rounds, busy = one.verdict, one.why, len(compared.seconds[name]), compared.busy
    if rounds > 1 and one.high < 1 / _AMID_LOAD:
        outcome, busy, why = "slower", False, ""
    elif busy and rounds >= _FEWEST and one.low > _AMID_LOAD:
        outcome, busy, why = "faster", False, "far enough ahead to be told beside other programs"
    elif not busy and rounds < _FEWEST:
        why = f"there was time for {rounds} rounds only"
    elif not busy and (share := _spread(base)) > _SPREAD:
        outcome, busy, why = "unclear", True, f"the base's own times spread by {share:.0%}, as on a busy machine"
    return ArmResult(
        outcome=outcome,
        gain=one.gain,
        low=one.low,
        high=one.high,
        seconds=one.arm_s,
        base_seconds=one.base_s,
        agreement=agreement,
        why=why,
        busy=busy,
        once=once,
    )


def _spread(times: list[float]) -> float:
    """The middle half of the times, as a share of their median."""
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return (third - first) / middle


def agreement(kind: Kind, trace: Trace, reference: Trace) -> tuple[bool, str]:
    """Whether the numbers agree with the base's within lower precision, and how far they differ."""
    if kind == "validate":
        share = float((trace[0] == reference[0]).float().mean())
        return share >= _SAME_LABELS, f"{share:.2%} of the labels are the same"
    loss, norm = (_difference(*pair) for pair in zip(trace, reference, strict=True))
    return agrees(trace, reference), f"loss {loss}, gradient norm {norm}"


def _difference(value: Tensor, reference: Tensor) -> str:
    off = float((value - reference).abs() / reference.abs().clamp(min=1e-12))
    return f"{100 * off:.2g} % off" if math.isfinite(off) else "not finite"
