"""The diagnosis of a run: some of its steps, two ablations, and the findings that follow."""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.config.schema import RunConfig
from hasten.engine.components import RunComponents
from hasten.engine.gc_control import collected_between_steps
from hasten.engine.variant import variant_of
from hasten.feed.feed import Feed
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.env import environment
from hasten.study.environment.rates import copy_rate, matmul_rate, synchronize, transfer_rates
from hasten.study.environment.threads import threads_here
from hasten.study.finding import Finding
from hasten.study.run.assemble import Assembled, ColdCache, assemble
from hasten.study.run.findings import Facts, findings
from hasten.study.run.probes import (
    Arms,
    Batch,
    device_busy,
    first_batch,
    operation_costs,
    run_arms,
    slower_than,
    work_of,
)
from hasten.study.run.rare import Rare, measure_rare
from hasten.study.run.timed import TimedSteps, WrapFeed, WrapStep, feed_alone, mean_seconds, run_steps
from hasten.study.run.whole import split_of
from hasten.study.time_split import Diagnosis, Split, diagnose

Echo = Callable[[str], None]
_ENDLESS = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDiagnosis:
    """Ready for JSON by `hasten.observe.rundir.write_json`."""

    split: Split
    diagnosis: Diagnosis
    findings: tuple[Finding, ...]
    """The largest gain first."""
    settings: dict[str, Any]
    """The settings that the run chose, as far as the findings refer to them."""
    once: dict[str, float]
    """Seconds before the first step, by what."""
    rare: Rare
    cold: ColdCache | None
    arms: Arms
    operations: dict[str, float]
    """Seconds of a batch by operation of the augmentation; "batch" is the whole."""
    variants: dict[str, float]
    notes: tuple[str, ...]
    """What the numbers do not cover."""
    others: float
    """Cores that other programs used meanwhile."""
    environment: dict[str, Any]
    seconds: float


def diagnose_run(
    config: RunConfig,
    *,
    steps: int = 20,
    seconds: float = 60.0,
    wrap_step: WrapStep | None = None,
    wrap_feed: WrapFeed | None = None,
    read_delay_s: float = 0.0,
    echo: Echo | None = None,
) -> RunDiagnosis:
    """Run some of a run's steps and report its bottleneck. The run's folder is not needed and no file is kept.

    steps: largest number that is timed; seconds: approximate time that is spent after the first step is ready. What a
    cache lacks is prepared into it if that is quick, as training would; else a part of the cases is, into a temporary
    folder.
    wrap_step: (step) -> a callable like it, wrap_feed: (batches) -> batches: put around the run's own, to see what a
    change costs. What a wrapped step takes beyond the step counts as reading device values if it reads any, else as the
    interpreter's. read_delay_s: each file, and each sample of an arena in the file, comes so much later, as from a slow
    disk; the cache then counts as cold.
    Raises ValueError for bad input before anything runs, as `train` does.
    """
    if steps < 2 or seconds <= 0:
        raise ValueError(f"steps={steps}, seconds={seconds:g}: give at least 2 steps and a time above 0")
    begin = time.perf_counter()
    report = echo or (lambda _: None)
    meter = LoadMeter()
    with tempfile.TemporaryDirectory(prefix="hasten-doctor-") as folder:
        report("putting the run together")
        run = assemble(config, Path(folder), seconds=seconds, read_delay_s=read_delay_s)
        wrap_feed = _with_delay(run.components, wrap_feed, read_delay_s)
        facts = _measure(run, config, Path(folder), steps, seconds, wrap_step, wrap_feed, report)
        delayed = read_delay_s * facts.config.sample.batch_size if "file" in facts.home else 0.0
        facts = dataclasses.replace(facts, disk_s=facts.disk_s + delayed, others=meter.others())
    return RunDiagnosis(
        split=facts.split,
        diagnosis=diagnose(facts.split),
        findings=tuple(findings(facts)),
        settings=_settings(run.components),
        once=run.once,
        rare=facts.rare,
        cold=run.cold,
        arms=facts.arms,
        operations=facts.operations,
        variants=facts.variants,
        notes=tuple(_notes(run, facts.captured)),
        others=facts.others,
        environment=environment(),
        seconds=time.perf_counter() - begin,
    )


def _with_delay(components: RunComponents, wrap_feed: WrapFeed | None, delay: float) -> WrapFeed | None:
    """Delay batches from a file by the delay of all their samples."""
    pause = delay * components.planned.config.sample.batch_size
    if not pause or "file" not in components.arena.home:
        return wrap_feed

    def wrapped(feed: Iterable[Any]) -> Iterator[Any]:
        for batch in feed if wrap_feed is None else wrap_feed(feed):
            time.sleep(pause)
            yield batch

    return wrapped


def _measure(
    run: Assembled,
    given: RunConfig,
    folder: Path,
    steps: int,
    seconds: float,
    wrap_step: WrapStep | None,
    wrap_feed: WrapFeed | None,
    report: Echo,
) -> Facts:
    components, config, device = run.components, run.components.planned.config, run.components.planned.device
    threads, cuda, inline = threads_here(), device.type == "cuda", not components.program.latest.prepared_on_host
    # Most of the run has patches of this step's size. The feed is abandoned once enough batches were taken.
    first, last = components.program.rounds.stages[-1].first, config.train.steps
    feed = Feed(components.program, first=first, last=_ENDLESS)
    disk_s, captured_s = _disk_seconds(components, first), _captured(components, steps, seconds * 0.1)
    report(f"training {steps} steps")
    with collected_between_steps():
        ran = run_steps(
            components.step, feed, steps=steps, seconds=seconds * 0.3, last=last, wrap_step=wrap_step,
            wrap_feed=wrap_feed,
        )  # fmt: skip
    report("the feed without steps")
    alone = feed_alone(feed, wrap_feed, steps=steps, seconds=seconds * 0.08, device=device)
    report("steps on a fixed batch, and on twice its samples")
    batch = first_batch(components, first)
    arms = run_arms(components, batch, cores=threads.wanted, seconds=seconds * 0.25)
    report("a validation and a checkpoint")
    rare = measure_rare(
        components, folder / "checkpoints", cases=run.validation_cases, step_s=ran.step_s, seconds=seconds * 0.12
    )
    report("the augmentation, operation by operation")
    split = split_of(
        ran, inline=inline, rare=rare, cold=run.cold, arms=arms, feed_alone_s=alone, cuda=cuda,
        busy_s=device_busy(lambda: components.step(*batch, 0), device), copy_s=_copy_seconds(batch, device),
        captured_s=captured_s, shares=_intensity(components, batch, ran),
    )  # fmt: skip
    return Facts(
        config=config,
        configured=given,
        split=split,
        cuda=cuda,
        inline=inline,
        home=components.arena.home,
        rare=rare,
        cold=run.cold,
        arms=arms,
        operations=operation_costs(components, seconds=seconds * 0.08),
        probabilities={type(op).__name__: op.prob for op in components.program.latest.chain.ops if hasattr(op, "prob")},
        variants=_by_hand(components, ran, seconds * 0.25),
        variant=str(variant_of(config.train)),
        threads=threads.torch,
        cores=threads.wanted,
        reads=ran.reads,
        disk_s=disk_s,
        captured=captured_s is not None,
        isal=importlib.util.find_spec("isal") is not None,
    )


def _by_hand(components: RunComponents, ran: TimedSteps, seconds: float) -> dict[str, float]:
    """Probes (`slower_than`) of a run whose variant is set in its configuration; others choose the fastest."""
    step_s = ran.marks.get("forward", 0.0) + ran.marks.get("backward", 0.0)
    if all(components.accelerators[name].set_by != "user" for name in ("precision", "channels-last")):
        return {}
    return slower_than(components, step_s=step_s, seconds=seconds)


def _disk_seconds(components: RunComponents, first: int) -> float:
    """Seconds of a batch that the page cache saves; 0 if the cases aren't in a file."""
    segment = components.program.latest
    if components.arena.pages is None or segment.compiled:
        return 0.0
    differences = []
    for number in range(3):
        draws = next(segment.draws(first + number, first + number + 1))
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            segment.rendered(draws)
            times.append(time.perf_counter() - begin)
        differences.append(times[0] - times[1])
    return max(0.0, statistics.median(differences))


def _captured(components: RunComponents, steps: int, seconds: float) -> float | None:
    """Seconds of a step as a CUDA graph; None without one."""
    captured, device = components.captured, components.planned.device
    if captured is None:
        return None
    with closing(captured):
        for index in range(8):
            captured(index)
        synchronize(device)
        if not captured.on:
            return None
        return mean_seconds(lambda count: captured(8 + count), steps=steps, seconds=seconds, device=device)


def _copy_seconds(batch: Batch, device: torch.device) -> float:
    if device.type != "cuda":
        return 0.0
    size = sum(tensor.numel() * tensor.element_size() for tensor in batch)
    return size / transfer_rates(device)[0]


def _intensity(components: RunComponents, batch: Batch, ran: TimedSteps) -> tuple[float | None, float | None]:
    """Shares of the memory's and of the multipliers' measured rates that forward and backward reach."""
    compute = ran.marks.get("forward", 0.0) + ran.marks.get("backward", 0.0)
    precision, device = components.planned.config.train.precision, components.planned.device
    if compute <= 0 or precision is None:
        return None, None
    try:
        work = work_of(components, batch)
    except (RuntimeError, NotImplementedError):  # an operation that the counters can't see through
        return None, None
    # A copy reads each byte and writes it.
    moved = work.moved / compute / (2 * copy_rate(device))
    return moved, work.flops / compute / matmul_rate(device, precision)


def _settings(components: RunComponents) -> dict[str, Any]:
    config = components.planned.config
    return {
        "device": str(components.planned.device),
        "home": components.arena.home,
        "train cases": len(components.planned.train),
        "validation cases": len(components.planned.validation),
        "patch": config.sample.patch,
        "batch_size": config.sample.batch_size,
        "steps": config.train.steps,
        "validate_every": config.train.validate_every,
        "checkpoint_every": config.train.checkpoint_every,
        "optimizer": config.train.optimizer,
        "precision": config.train.precision,
        "channels_last": config.train.channels_last,
        "compile": config.train.compile,
        "accumulate": config.train.accumulate,
    }


def _notes(run: Assembled, captured: bool) -> Iterator[str]:
    if not run.whole:
        yield "The cache is cold and filling it would take too long for this look: a part of the cases was prepared."
    if captured:
        yield "The step runs as a CUDA graph; its phases are those of the step without one, scaled to its time."
    yield "A checkpoint was written to the temporary folder's disk, which may not be the run's."
