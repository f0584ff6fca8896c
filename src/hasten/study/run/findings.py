"""Findings about a run from its measurements: settings to change, each with its cost, cure and expected gain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hasten.config.schema import RunConfig
from hasten.config.settled import PlannedRun
from hasten.observe.cpu_load import BUSY
from hasten.study.finding import (
    CHECKPOINTS,
    DOUBLED,
    FASTER,
    READS,
    VALIDATION,
    WAITS,
    Finding,
    finding_from_share,
    gain_of,
    ms,
    ranked,
)
from hasten.study.run.assemble import ColdCache
from hasten.study.run.probes import Arms
from hasten.study.run.rare import Rare
from hasten.study.time_split import Split

_VALIDATION = 0.10
_CHECKPOINTS = 0.02
"""Target shares for validations and checkpoints that take much more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that a finding may depend on."""

    config: PlannedRun
    configured: RunConfig
    """The configuration as the user wrote it."""
    split: Split
    cuda: bool
    inline: bool
    """Whether the training device makes its batches itself."""
    home: str
    """Home of the arena, as `Arena.home`."""
    rare: Rare
    cold: ColdCache | None
    arms: Arms
    operations: dict[str, float] = field(default_factory=dict)
    """Costs of the operations, from `operation_costs`."""
    probabilities: dict[str, float] = field(default_factory=dict)
    """Probability of each operation of the augmentation, by its name."""
    variants: dict[str, float] = field(default_factory=dict)
    """Seconds of a probe by variant, from `slower_than`."""
    variant: str = ""
    """The one that the run has."""
    threads: int = 1
    cores: int = 1
    reads: float = 0.0
    """Values of the device that are read in a step, outside the step itself."""
    disk_s: float = 0.0
    """Seconds of a batch that go into fetching its voxels from the disk."""
    captured: bool = False
    """Whether the step runs as a CUDA graph."""
    isal: bool = True
    others: float = 0.0

    def seconds(self, *names: str) -> float:
        """Seconds of a step that these parts take."""
        return sum(self.split.parts.get(name, 0.0) for name in names)

    def finding(self, cost_s: float, **texts: str) -> Finding:
        """A finding that costs this many seconds of a step, all of which its cure saves."""
        return Finding(cost_s=cost_s, gain=gain_of(cost_s, self.split.step_s), **texts)  # type: ignore[arg-type]


def findings(facts: Facts) -> list[Finding]:
    """Ranked by expected gain."""
    candidates = [
        *_cold(facts), *_feed(facts), *_augmentation(facts), *_transfer(facts), *_reads(facts), *_batch(facts),
        *_launches(facts), *_arms(facts), *_variant(facts), *_validation(facts),
        *_checkpoints(facts), *_busy(facts),
    ]  # fmt: skip
    return ranked(candidates)


def _cold(facts: Facts) -> Iterator[Finding]:
    cold, cost = facts.cold, facts.seconds("read", "prepare")
    if cold is None or cost < 0.05 * facts.split.step_s:
        return
    evidence = (
        f"of a case: {ms(cold.disk_s)} reading, {ms(cold.decode_s)} unpacking, {ms(cold.prepare_s)} preparing; "
        f"{cold.cases} cases on {cold.threads} threads take {cold.read_total_s + cold.prepare_total_s:.0f} s, once"
    )
    parts = {"disk": cold.disk_s, "decode": cold.decode_s, "prepare": cold.prepare_s}
    worst = max(parts, key=lambda name: parts[name])
    where = "data.source"
    if worst == "disk":
        name, title = "slow-disk", "Reading the data set's files holds the start up"
        cure = "copy the data set to a local disk and set data.source to it"
    elif worst == "decode" and not facts.isal:
        name, title, cure = "slow-gunzip", "Unpacking the files holds the start up", "pip install isal"
    else:
        name, title = "cold-cache", "Preparing the cases takes long for a run this short"
        where, cure = "cache.dir", "keep the cache (cache.dir): later runs find the cases"
        if cold.threads < facts.cores:
            where, cure = "prepare.num_threads", f"prepare.num_threads={facts.cores}"
    yield facts.finding(cost, name=name, title=title, where=where, cure=cure, evidence=evidence)


def _feed(facts: Facts) -> Iterator[Finding]:
    wait, alone = facts.seconds("wait"), facts.split.feed_alone_s
    if wait < WAITS * facts.split.step_s:
        return
    evidence = f"a step waits {ms(wait)} for its batch"
    evidence += f"; with no step a batch takes {ms(alone)}" if alone is not None else ""
    where = "cache.home"
    if facts.disk_s > 0.3 * wait:
        name, title, cure = "cases-on-disk", "Batches wait for the disk", "cache.home=ram"
        evidence += f"; {ms(facts.disk_s)} of it from the disk"
    elif facts.cuda and not facts.inline:
        name, title = "host-batches", "The host makes batches more slowly than the GPU uses them"
        cure = "cache.home=device"
    else:
        name, title, where = "slow-feed", "The step stands still while its batch is made", "feed"
        cure = "make batches ahead in a thread (hasten.ThreadDataLoader), from cases held in memory"
    yield facts.finding(wait, name=name, title=title, where=where, cure=cure, evidence=evidence)


def _augmentation(facts: Facts) -> Iterator[Finding]:
    costs = dict(facts.operations)
    batch = costs.pop("batch", 0.0)
    # Where a thread makes the batches they cost the step only what it waits.
    batch_s = facts.seconds("sample") if facts.inline else min(facts.seconds("wait"), batch)
    if batch_s < WAITS * facts.split.step_s:
        return
    evidence = f"a batch takes {ms(batch_s)} to crop and augment"
    where, title, cost = "sample", "Cropping and augmenting takes much of a step", 0.5 * batch_s
    cure = "cache.home=device" if facts.cuda else "cache.home=ram"
    if costs:
        worst = max(costs, key=lambda name: costs[name])
        evidence += "; saved without " + ", ".join(f"{name}: {ms(value)}" for name, value in costs.items())
        now = facts.probabilities[worst]
        less = max(0.01, round(now / 3, 2))
        where, title = "augment", f"Augmentation takes much of a step, {worst} most"
        cure = f"augment.override='{{{worst}.prob: {less:g}}}'"
        if facts.cuda and not facts.inline:
            cure = "cache.home=device"
        cost = min(batch_s, costs[worst]) * (1 - less / now)
    yield facts.finding(cost, name="slow-augmentation", title=title, where=where, cure=cure, evidence=evidence)


def _transfer(facts: Facts) -> list[Finding]:
    copies = facts.seconds("host_to_device")
    return finding_from_share(
        copies, facts.split.step_s, WAITS, name="host-to-device",
        title="Copying batches to the device takes much of a step", where="cache.home", cure="cache.home=device",
        evidence=f"{ms(copies)} a step",
    )  # fmt: skip


def _reads(facts: Facts) -> list[Finding]:
    cost = facts.seconds("device_reads")
    return finding_from_share(
        cost, facts.split.step_s, READS, name="device-reads",
        title="The host reads values of the device in every step", where="step",
        cure="keep losses on the device and read them every 50 steps",
        evidence=f"{facts.reads:.1f} reads a step, {ms(cost)}",
    )  # fmt: skip


def _batch(facts: Facts) -> Iterator[Finding]:
    doubled, size = facts.arms.doubled, facts.config.sample.batch_size
    if doubled is None or doubled >= DOUBLED or size is None:
        return
    fixed = _fixed_share(facts, doubled)
    if fixed < 0.5:
        return
    times = min(8, max(2, 2 ** math.ceil(math.log2(4 * fixed / (1 - fixed)))))
    gain = times / (fixed + times * (1 - fixed))
    evidence = f"a step on twice the {size} samples takes {doubled:.2f} times as long"
    if times > 2:
        evidence += f"; {times} times as many would take about {fixed + times * (1 - fixed):.1f} times as long"
    step = facts.arms.seconds.get("fixed", facts.split.step_s)
    yield Finding(
        name="small-batch",
        title="The batch is too small: a step's fixed costs rule",
        where="sample.batch_size",
        cure=f"sample.batch_size={times * size}",
        evidence=evidence + " (samples a second)",
        cost_s=fixed * step,
        gain=min(20.0, gain_of((1 - 1 / gain) * step, facts.split.step_s)),
    )


def _fixed_share(facts: Facts, doubled: float) -> float:
    """Share of a step that doesn't grow with its samples: at most what one small patch and the optimizer take."""
    small, step = facts.arms.seconds.get("small"), facts.arms.seconds["fixed"]
    share = 2 - doubled
    if small is not None:
        share = min(share, (small + facts.seconds("optimizer")) / step)
    return min(0.95, max(0.0, share))


def _launches(facts: Facts) -> Iterator[Finding]:
    cost = facts.seconds("overhead")
    if cost < 0.15 * facts.split.step_s or any(_batch(facts)):  # each cause is reported once
        return
    train = facts.config.train
    if facts.cuda and train.capture is False and facts.inline:
        where, cure = "train.capture", "train.capture=true"
    elif not train.compile:
        where, cure = "train.compile", "train.compile=true"
    else:
        where, cure = "sample.batch_size", f"sample.batch_size={2 * facts.config.sample.batch_size}"
    yield facts.finding(
        0.5 * cost,
        name="launch-overhead",
        title="Interpreter and launches take much of a step",
        where=where,
        cure=cure,
        evidence=f"{ms(cost)} a step do not depend on the number of voxels",
    )


def _arms(facts: Facts) -> Iterator[Finding]:
    """Arms that are faster than the step as it is."""
    pieces = facts.config.train.accumulate
    if pieces > 1:
        yield from _faster_arm(
            facts, "whole", 1.03, f"in {pieces} pieces", "in one, which fits into memory", name="needless-accumulate",
            title="The batch goes through in pieces though it fits whole",
            where="train.accumulate", cure="train.accumulate=1",
        )  # fmt: skip
    yield from _faster_arm(
        facts, "eager", 1.05, "compiled", "eager", name="slow-compile",
        title="The compiled network is slower than the plain one",
        where="train.compile", cure="train.compile=false",
    )  # fmt: skip
    yield from _faster_arm(
        facts, "threads", FASTER, f"on {facts.threads} threads", f"on {facts.cores}", name="few-threads",
        title="torch uses fewer threads than there are cores",
        where="OMP_NUM_THREADS", cure=f"export OMP_NUM_THREADS={facts.cores}",
    )  # fmt: skip


def _faster_arm(facts: Facts, arm: str, least: float, now: str, other: str, **texts: str) -> Iterator[Finding]:
    """A finding if the step takes more than `least` times as long as `arm`. now, other: words for the two."""
    step_s, arm_s = facts.arms.seconds.get("fixed", 0.0), facts.arms.seconds.get(arm, math.inf)
    if step_s > least * arm_s:
        evidence = f"a step takes {ms(step_s)} {now} and {ms(arm_s)} {other}"
        yield facts.finding(step_s - arm_s, evidence=evidence, **texts)


def _variant(facts: Facts) -> Iterator[Finding]:
    train, configured = facts.config.train, facts.configured.train
    if facts.variant not in facts.variants or (configured.precision is None and configured.channels_last is None):
        return
    best, seconds = next(iter(facts.variants.items()))
    now = facts.variants[facts.variant]
    if now <= FASTER * seconds:
        return
    precision, last = best.split()[0], best.endswith("channels-last")
    changes = [
        ("train.precision", precision, train.precision),
        ("train.channels_last", str(last).lower(), str(train.channels_last).lower()),
    ]
    changed = [(name, value) for name, value, is_now in changes if value != is_now]
    compute = facts.seconds("forward", "backward")
    timings = ", ".join(f"{name} {ms(value)}" for name, value in facts.variants.items())
    yield facts.finding(
        compute * (1 - seconds / now),
        name="slow-precision",
        title="Precision or memory format are set to something slower than another",
        where=changed[0][0],
        cure=" ".join(f"{name}={value}" for name, value in changed),
        evidence=f"forward and backward of a probe: {timings}",
    )


def _validation(facts: Facts) -> list[Finding]:
    rare, cost = facts.rare, facts.seconds("validation")
    every = facts.config.train.validate_every
    rest = facts.split.step_s - cost
    interval = _nice(rare.validation_s * (1 - _VALIDATION) / (_VALIDATION * rest)) if rest > 0 else rare.steps
    evidence = (
        f"a validation takes {ms(rare.validation_s)} (by {rare.timed_cases} cases) and comes every {every} steps: "
        f"{cost / facts.split.step_s:.0%} of the time"
    )
    if every >= rare.steps or interval <= every:
        saved_s, where, cure = 0.5 * cost, "infer.overlap", "infer.overlap=0.25"
    else:
        interval = min(interval, rare.steps)
        saved_s = cost - rare.validation_s * -(-rare.steps // interval) / rare.steps
        where, cure = "train.validate_every", f"train.validate_every={interval}"
    return finding_from_share(
        cost, facts.split.step_s, VALIDATION, saved_s=saved_s, name="validation-often",
        title="Validation takes much of the time", where=where, cure=cure,
        evidence=evidence,
    )  # fmt: skip


def _checkpoints(facts: Facts) -> list[Finding]:
    rare, cost = facts.rare, facts.seconds("checkpoint")
    every = facts.config.train.checkpoint_every
    rest = facts.split.step_s - cost
    alone = max(rare.write_s, rare.checkpoint_s) if rest <= 0 else rare.checkpoint_s
    interval = min(rare.steps, max(2 * every, _nice(alone / (_CHECKPOINTS * max(rest, 1e-9)))))
    evidence = f"a checkpoint holds the training up for {ms(rare.checkpoint_s)}, every {every} steps"
    return finding_from_share(
        cost, facts.split.step_s, CHECKPOINTS, saved_s=cost * (1 - every / interval), name="checkpoint-often",
        title="Checkpoints take much of the time", where="train.checkpoint_every",
        cure=f"train.checkpoint_every={interval}",
        evidence=evidence,
    )  # fmt: skip


def _nice(value: float) -> int:
    """The next round number that is not smaller."""
    if value <= 1:
        return 1
    power = 10 ** math.floor(math.log10(value))
    rounded = (step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return int(next(each for each in rounded if each >= value and each % 1 == 0))


def _busy(facts: Facts) -> Iterator[Finding]:
    if facts.others > BUSY:
        yield Finding(
            name="busy-machine",
            title="Other programs ran meanwhile, so all times are doubtful",
            where="",
            cure="end them (see `top`) and ask again",
            evidence=f"they used {facts.others:.1f} cores",
            level="note",
        )
