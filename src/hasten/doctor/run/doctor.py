"""The diagnosis of a run: some of its steps, two ablations, the findings that follow, and its text and page."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.cache.build import is_prepared
from hasten.config.schema import RunConfig
from hasten.devices import kind_of
from hasten.doctor.environment.storage import transfer_rate
from hasten.doctor.environment.threads import threads_here
from hasten.doctor.finding import Finding, ms
from hasten.doctor.run.findings import RunMeasurements, findings
from hasten.doctor.run.measure import (
    PeriodicCosts,
    device_busy,
    feed_alone,
    first_batch,
    fixed_and_doubled,
    mean_seconds,
    measure_periodic,
    operation_costs,
    run_steps,
    split_of,
)
from hasten.doctor.show import finding_lines, findings_section, split_section
from hasten.doctor.time_split import PARTS, Diagnosis, Split, diagnose
from hasten.doctor.training import (
    RunComponents,
    arena_of,
    collected_between_steps,
    compose_run,
    current_device,
    pick_device,
    plan_run,
    settings_of,
    synchronize,
    with_train,
)
from hasten.feed.feed import Feed
from hasten.kernels.use import triton_as
from hasten.observe.clock import Clock
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.env import environment
from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section, Table
from hasten.report.words import plain

Echo = Callable[[str], None]
_ENDLESS = 10**9
_CAPTURED = "The step runs as a CUDA graph; its phases are those of the step without one, scaled to its time."
_ELSEWHERE = "A checkpoint was written to the temporary folder's disk, which may not be the run's."


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
    periodic: PeriodicCosts
    operations: dict[str, float]
    """Seconds of a batch by operation of the augmentation; "batch" is the whole."""
    notes: tuple[str, ...]
    """What the numbers do not cover."""
    others: float
    """Cores that other programs used meanwhile."""
    environment: dict[str, Any]
    seconds: float


def diagnose_run(
    config: RunConfig, *, steps: int = 20, seconds: float = 60.0, echo: Echo | None = None
) -> RunDiagnosis:
    """Run some of a run's steps and report its bottleneck. The run's folder is not needed and no file is kept.

    steps: largest number that is timed; seconds: approximate time that is spent after the first step is ready. What a
    cache lacks is prepared into it, as training would. Raises ValueError for bad input before anything runs, as `train`
    does.
    """
    if steps < 2 or seconds <= 0:
        raise ValueError(f"steps={steps}, seconds={seconds:g}: give at least 2 steps and a time above 0")
    begin = time.perf_counter()
    report = echo or (lambda _: None)
    meter, clock = LoadMeter(), Clock()
    device = pick_device(config.train.device)
    with ExitStack() as stack:
        stack.enter_context(current_device(device))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hasten-doctor-"))
        stack.enter_context(triton_as(config.train.fused_kernels))
        report("putting the run together")
        components, prepared_s = _assembled(config, clock)
        measured, captured = _measure(components, prepared_s, Path(folder), steps, seconds, meter, report)
    return RunDiagnosis(
        split=measured.split,
        diagnosis=diagnose(measured.split),
        findings=tuple(findings(measured)),
        settings=settings_of(components),
        once=clock.seconds,
        periodic=measured.periodic,
        operations=measured.operations,
        notes=(_CAPTURED, _ELSEWHERE) if captured else (_ELSEWHERE,),
        others=measured.others,
        environment=environment(),
        seconds=time.perf_counter() - begin,
    )


def _assembled(config: RunConfig, clock: Clock) -> tuple[RunComponents, float]:
    """The run as training assembles it, and the seconds of preparing the cases that the cache lacked."""
    # Compiling the network takes a minute and is `hasten tune`'s to try, unless the run asks for it.
    train = dataclasses.replace(config.train, compile=bool(config.train.compile))
    with clock.span("plan"):
        planned = plan_run(dataclasses.replace(config, train=train))
    cached = is_prepared(planned.case_set, planned.config.prepare, planned.config.cache, planned.files)
    with clock.span("cases"):
        arena = arena_of(planned)
    with clock.span("network"):
        if planned.config.train.capture is None and not kind_of(planned.device).graphs:
            planned = with_train(planned, capture=False)
        torch.manual_seed(planned.config.train.seed)
        components = compose_run(planned, arena, clock)
    return components, 0.0 if cached else clock.seconds["cases"]


def _measure(
    components: RunComponents,
    prepared_s: float,
    folder: Path,
    steps: int,
    seconds: float,
    meter: LoadMeter,
    report: Echo,
) -> tuple[RunMeasurements, bool]:
    """Also whether the step runs as a CUDA graph."""
    config, device = components.planned.config, components.planned.device
    cuda, inline = kind_of(device).accelerator, not components.program.latest.prepared_on_host
    # Most of the run has patches of this step's size. The feed is abandoned once enough batches were taken.
    first, last = components.program.rounds.stages[-1].first, config.train.steps
    feed = Feed(components.program, first=first, last=_ENDLESS)
    captured_s = _captured(components, steps, seconds * 0.1)
    report(f"training {steps} steps")
    with collected_between_steps():
        ran = run_steps(components.step, feed, steps=steps, seconds=seconds * 0.3, last=last)
    report("the feed without steps")
    alone = feed_alone(feed, steps=steps, seconds=seconds * 0.08, device=device)
    report("steps on a fixed batch, and on twice its samples")
    batch = first_batch(components, first)
    fixed_s, doubled = fixed_and_doubled(components, batch, seconds=seconds * 0.25)
    report("a validation and a checkpoint")
    periodic = measure_periodic(components, folder / "checkpoints", step_s=ran.step_s, seconds=seconds * 0.12)
    report("the augmentation, operation by operation")
    split = split_of(
        ran,
        inline=inline,
        periodic=periodic,
        prepared_s=prepared_s,
        fixed_s=fixed_s,
        doubled=doubled,
        feed_alone_s=alone,
        cuda=cuda,
        busy_s=device_busy(lambda: components.step(*batch, 0), device),
        copy_s=sum(tensor.nbytes for tensor in batch) / transfer_rate(device) if cuda else 0.0,
        captured_s=captured_s,
    )
    measured = RunMeasurements(
        config=config,
        split=split,
        cuda=cuda,
        inline=inline,
        home=components.arena.home,
        periodic=periodic,
        prepared_s=prepared_s,
        operations=operation_costs(components, seconds=seconds * 0.08),
        probabilities={type(op).__name__: op.prob for op in components.program.latest.chain.ops if hasattr(op, "prob")},
        cores=threads_here().wanted,
        others=meter.others(),
    )
    return measured, captured_s is not None


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


_NONE = "No setting was found that would make it faster."


def lines(report: RunDiagnosis) -> list[str]:
    """Lines for a terminal: the sentence, the split, then each finding with its evidence and its cure."""
    split = report.split
    output = [report.diagnosis.sentence, ""]
    for name, words in PARTS.items():
        value = split.parts.get(name, 0.0)
        if value >= 0.005 * split.step_s:
            output.append(f"  {value / split.step_s:4.0%}  {ms(value):>9}  {words}")
    output.append(f"        {ms(split.step_s):>9}  a step in all, {split.steps} steps timed")
    output.append("")
    output += [*(finding_lines(report.findings) or [_NONE]), ""]
    return [*output, *(f"note: {note}" for note in report.notes)]


def write_page(report: RunDiagnosis, out: Path, *, source: str) -> Path:
    """The HTML page. source: what was looked at, for its title. Raises ValueError if it can't be written."""
    split = report.split
    best = next((finding for finding in report.findings if finding.gain is not None), None)
    cards = (
        ("Bound by", report.diagnosis.bound, report.diagnosis.measure),
        ("A step", ms(split.step_s), f"{split.steps} timed, all costs spread over the run's steps"),
        ("On one fixed batch", ms(split.fixed_batch_s or 0.0), split.floor_note),
        ("A batch with no step", ms(split.feed_alone_s or 0.0), "the data's ceiling"),
        ("Largest gain", f"{best.gain:.2f}x" if best and best.gain else "none", best.cure if best else "no finding"),
    )
    settings = tuple((name.replace("_", " "), plain(value)) for name, value in report.settings.items())
    spread = "Validation, checkpoints and what is done once are spread over the steps."
    sections = (
        split_section(split, report.diagnosis, spread),
        findings_section(report.findings, _NONE),
        Section("Settings", table=Table(("Setting", "Value"), settings), note=" ".join(report.notes)),
    )
    title = f"Doctor: {source}"
    return write_html(Page(title=title, verdict=report.diagnosis.sentence, cards=cards, sections=sections), out)
