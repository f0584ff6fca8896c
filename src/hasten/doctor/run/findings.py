"""Findings about a run from its measurements: settings to change, each with its cost, cure and expected gain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hasten.config.settled import PlannedRun
from hasten.doctor.finding import AS_LONG, CHECKPOINTS, DOUBLED, VALIDATION, WAITS, Finding, gain_of, ms, ranked
from hasten.doctor.run.measure import PeriodicCosts
from hasten.doctor.time_split import Split
from hasten.observe.cpu_load import BUSY

_VALIDATION = 0.10
_CHECKPOINTS = 0.02
"""Target shares for validations and checkpoints that take much more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMeasurements:
    """Everything that a finding may depend on."""

    config: PlannedRun
    split: Split
    cuda: bool
    inline: bool
    """Whether the training device makes its batches itself."""
    home: str
    """Home of the arena, as `Arena.home`."""
    periodic: PeriodicCosts
    prepared_s: float = 0.0
    """Seconds of preparing all cases; 0 where the cache held them."""
    operations: dict[str, float] = field(default_factory=dict)
    """Costs of the operations, from `operation_costs`."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """Probability of each operation of the augmentation, by its name."""
    cores: int = 1
    others: float = 0.0

    def seconds(self, *names: str) -> float:
        """Seconds of a step that these parts take."""
        return sum(self.split.parts.get(name, 0.0) for name in names)

    def finding(self, cost_s: float, *, saved_s: float | None = None, **texts: str) -> Finding:
        """A finding that costs this many seconds of a step. saved_s: what its cure saves, by default all."""
        gain = gain_of(cost_s if saved_s is None else max(0.0, saved_s), self.split.step_s)
        return Finding(cost_s=cost_s, gain=gain, **texts)  # type: ignore[arg-type]


def findings(run: RunMeasurements) -> list[Finding]:
    """Ranked by expected gain."""
    rules = (_cold, _feed, _augmentation, _transfer, _batch, _launches, _validation, _checkpoints, _busy)
    return ranked(found for rule in rules for found in rule(run))


def _cold(run: RunMeasurements) -> Iterator[Finding]:
    cost = run.seconds("prepare")
    if cost < 0.05 * run.split.step_s:
        return
    where, cure = "cache.dir", "keep the cache (cache.dir): later runs find the cases"
    threads = run.config.prepare.num_threads or run.cores
    if threads < run.cores:
        where, cure = "prepare.num_threads", f"prepare.num_threads={run.cores}"
    title = "Reading and preparing the cases takes long for a run this short"
    evidence = f"they took {run.prepared_s:.0f} s on {threads} threads, once"
    yield run.finding(cost, name="cold-cache", title=title, where=where, cure=cure, evidence=evidence)


def _feed(run: RunMeasurements) -> Iterator[Finding]:
    wait, alone = run.seconds("wait"), run.split.feed_alone_s
    if wait < WAITS * run.split.step_s:
        return
    evidence = f"a step waits {ms(wait)} for its batch"
    evidence += f"; with no step a batch takes {ms(alone)}" if alone is not None else ""
    where = "cache.home"
    if run.home == "file":
        name, title, cure = "cases-on-disk", "Batches are made from cases on the disk", "cache.home=ram"
    elif run.cuda and not run.inline:
        name, title = "host-batches", "The host makes batches more slowly than the GPU uses them"
        cure = "cache.home=device"
    else:
        name, title, where = "slow-feed", "The step stands still while its batch is made", "feed"
        cure = "make batches ahead in a thread (hasten.ThreadDataLoader), from cases held in memory"
    yield run.finding(wait, name=name, title=title, where=where, cure=cure, evidence=evidence)


def _augmentation(run: RunMeasurements) -> Iterator[Finding]:
    costs = dict(run.operations)
    batch = costs.pop("batch", 0.0)
    # Where a thread makes the batches they cost the step only what it waits.
    batch_s = run.seconds("sample") if run.inline else min(run.seconds("wait"), batch)
    if batch_s < WAITS * run.split.step_s:
        return
    evidence = f"a batch takes {ms(batch_s)} to crop and augment"
    where, title, cost = "sample", "Cropping and augmenting takes much of a step", 0.5 * batch_s
    cure = "cache.home=device" if run.cuda else "cache.home=ram"
    if costs:
        worst = max(costs, key=lambda name: costs[name])
        evidence += "; saved without " + ", ".join(f"{name}: {ms(value)}" for name, value in costs.items())
        now = run.probabilities[worst]
        less = max(0.01, round(now / 3, 2))
        where, title = "augment", f"Augmentation takes much of a step, {worst} most"
        cure = f"augment.override='{{{worst}.prob: {less:g}}}'"
        if run.cuda and not run.inline:
            cure = "cache.home=device"
        cost = min(batch_s, costs[worst]) * (1 - less / now)
    yield run.finding(cost, name="slow-augmentation", title=title, where=where, cure=cure, evidence=evidence)


def _transfer(run: RunMeasurements) -> Iterator[Finding]:
    copies, cure = run.seconds("host_to_device"), "cache.home=device"
    if copies >= WAITS * run.split.step_s:
        title, evidence = "Copying batches to the device takes much of a step", f"{ms(copies)} a step"
        yield run.finding(copies, name="host-to-device", title=title, where="cache.home", cure=cure, evidence=evidence)


def _batch(run: RunMeasurements) -> Iterator[Finding]:
    doubled, size, step_s = run.split.doubled, run.config.sample.batch_size, run.split.fixed_batch_s
    if doubled is None or step_s is None or not AS_LONG <= doubled < DOUBLED:
        return
    fixed = min(0.95, 2 - doubled)  # the share of a step that doesn't grow with its samples
    times = min(8, max(2, 2 ** math.ceil(math.log2(4 * fixed / (1 - fixed)))))
    gain = times / (fixed + times * (1 - fixed))
    yield Finding(
        name="small-batch",
        title="The batch is too small: a step's fixed costs rule",
        where="sample.batch_size",
        cure=f"sample.batch_size={times * size}",
        evidence=f"a step on twice the {size} samples takes {doubled:.2f} times as long (samples a second)",
        cost_s=fixed * step_s,
        gain=min(20.0, gain_of((1 - 1 / gain) * step_s, run.split.step_s)),
    )


def _launches(run: RunMeasurements) -> Iterator[Finding]:
    cost = run.seconds("overhead")
    if cost < 0.15 * run.split.step_s or any(_batch(run)):  # each cause is reported once
        return
    train = run.config.train
    if run.cuda and train.capture is False and run.inline:
        where, cure = "train.capture", "train.capture=true"
    elif not train.compile:
        where, cure = "train.compile", "train.compile=true"
    else:
        where, cure = "sample.batch_size", f"sample.batch_size={2 * run.config.sample.batch_size}"
    title, evidence = "Interpreter and launches take much of a step", f"{ms(cost)} a step whatever its number of voxels"
    yield run.finding(0.5 * cost, name="launch-overhead", title=title, where=where, cure=cure, evidence=evidence)


def _validation(run: RunMeasurements) -> Iterator[Finding]:
    periodic, cost, step_s = run.periodic, run.seconds("validation"), run.split.step_s
    every = run.config.train.validate_every
    if cost < VALIDATION * step_s:
        return
    rest = step_s - cost
    interval = _nice(periodic.validation_s * (1 - _VALIDATION) / (_VALIDATION * rest)) if rest > 0 else periodic.steps
    if every >= periodic.steps or interval <= every:
        saved_s, where, cure = 0.5 * cost, "infer.overlap", "infer.overlap=0.25"
    else:
        interval = min(interval, periodic.steps)
        saved_s = cost - periodic.validation_s * -(-periodic.steps // interval) / periodic.steps
        where, cure = "train.validate_every", f"train.validate_every={interval}"
    title = "Validation takes much of the time"
    evidence = f"{ms(periodic.validation_s)} (by {periodic.timed_cases} cases) every {every} steps: {cost / step_s:.0%}"
    texts = {"name": "validation-often", "title": title, "where": where, "cure": cure, "evidence": evidence}
    yield run.finding(cost, saved_s=saved_s, **texts)


def _checkpoints(run: RunMeasurements) -> Iterator[Finding]:
    periodic, cost, where = run.periodic, run.seconds("checkpoint"), "train.checkpoint_every"
    every, rest = run.config.train.checkpoint_every, run.split.step_s - cost
    if cost < CHECKPOINTS * run.split.step_s:
        return
    alone = max(periodic.write_s, periodic.checkpoint_s) if rest <= 0 else periodic.checkpoint_s
    interval = min(periodic.steps, max(2 * every, _nice(alone / (_CHECKPOINTS * max(rest, 1e-9)))))
    evidence = f"a checkpoint holds the training up for {ms(periodic.checkpoint_s)}, every {every} steps"
    title, saved_s = "Checkpoints take much of the time", cost * (1 - every / interval)
    texts = {"title": title, "where": where, "cure": f"{where}={interval}", "evidence": evidence}
    yield run.finding(cost, saved_s=saved_s, name="checkpoint-often", **texts)


def _nice(value: float) -> int:
    """The next round number that is not smaller."""
    if value <= 1:
        return 1
    power = 10 ** math.floor(math.log10(value))
    rounded = (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return int(next(each for each in rounded if each >= value and each % 1 == 0))


def _busy(run: RunMeasurements) -> Iterator[Finding]:
    if run.others > BUSY:
        title, cure = "Other programs ran meanwhile, so all times are doubtful", "end them (see `top`) and ask again"
        yield Finding("busy-machine", title, cure, evidence=f"they used {run.others:.1f} cores", level="note")
