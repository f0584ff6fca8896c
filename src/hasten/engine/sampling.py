"""The batch program of a run: its augmentation and cases, compiled together where that pays."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import torch

from hasten.augment.chain import Batch, is_per_sample
from hasten.augment.fused import fused_places
from hasten.augment.make_program import CaseSource, cases_of_arena, make_segment
from hasten.augment.program import Program, Segment
from hasten.augment.run_chain import RunChain, with_patch
from hasten.augment.store import store_of_batch
from hasten.augment.whole_cases import WholeCases, items_of_arena
from hasten.cache.arena import Arena
from hasten.cache.key import cache_dir, digest
from hasten.config.decision import GIVEN
from hasten.distribute.case_assignment import RankCases
from hasten.engine.experiments import Experiments
from hasten.engine.measure import Switch, certainly_faster, compared
from hasten.engine.run_plan import RunPlan
from hasten.files import first_line
from hasten.kernels.build import built_together
from hasten.kernels.use import triton_works
from hasten.nets.build import divisor
from hasten.nets.recompute.measure import seconds_of
from hasten.observe.clock import Clock
from hasten.observe.cpu_load import BUSY, other_cores
from hasten.sample.order import Dealt
from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_plan
from hasten.sample.share import WHOLE, Share

log = logging.getLogger(__name__)

_COMPARE_SECONDS = 10.0
"""Time limit, in seconds, of comparing an eager and a compiled program."""
_LOAD_SECONDS = 0.2
"""For which the load by other programs is measured before something is compiled."""
_CHECKED_BATCHES = 8
"""Batches that fused kernels must make as torch's operations do, before they are timed."""
_FEW = 1e-3
"""Share of voxels that may differ in them."""
_COMPILE_SECONDS = {"cuda": 10.0}
"""Seconds that compiling a batch program and comparing it costs; 60 on a CPU with two cores."""
_SAVED = {"cpu": 0.5}
"""Share of an eager batch's time that a compiled one saves, about; four fifths on a GPU."""


def settle_program(
    planned: RunPlan,
    arena: Arena,
    share: Share = WHOLE,
    rank_cases: RankCases | None = None,
    engaged: dict[str, Switch] | None = None,
    *,
    experiments: Experiments | None = None,
    step_seconds: float = 0.0,
) -> tuple[RunPlan, Program]:
    """The batch program of a rank's share, compiled if that is set, or if it pays within this run.

    rank_cases: the training cases, where they are dealt into parts; else they lie in `arena`. engaged: gets the
    outcome. experiments: of the run; None limits nothing. step_seconds: of a step without its batch. Raises ValueError
    for an augmentation that these cases don't allow.
    """
    experiments = experiments or Experiments(Clock())
    config = planned.config
    requested, why = config.sample.compile, GIVEN
    marker = _kernel_marker(planned)
    pays = partial(_compile_pays, steps=config.train.steps, step_seconds=step_seconds, experiments=experiments)
    if requested is None and share.size > 1 and planned.device.type == "cpu":
        # Each rank would measure separately, and the results might differ.
        requested, why = False, "not tried where several processes share the step; set sample.compile"
    elif requested is None and triton_works(planned.device):
        requested, why = False, "Hasten's own kernels read and draw, which a compiler would not use; set sample.compile"
    if requested is not None:
        program = _program(planned, arena, share, rank_cases, compile=requested)
        _build_kernels(program.latest)
    else:
        program = _program(planned, arena, share, rank_cases, compile=False)
        requested, why = pays(program.latest, known=marker.is_file())
        if requested:
            with experiments.running():
                compiled = _program(planned, arena, share, rank_cases, compile=True)
                program, why = _faster(program, compiled, "compiled", why, experiments.left_s)
    if program.compiled:
        # Only a hint for the next run's decision: a read-only cache folder must not end this one.
        with contextlib.suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    part = dataclasses.replace(config.sample, compile=program.compiled)
    settled = dataclasses.replace(planned, config=dataclasses.replace(config, sample=part))
    reason = f"{why}; {program.why}" if requested and program.why != "not asked for" else why
    engaged = {} if engaged is None else engaged
    engaged["compiled batch program"] = Switch(program.compiled, reason)
    make = partial(_program, planned, arena, share, rank_cases, compile=False)
    program = _in_few_kernels(planned, program, make, partial(pays, known=False), engaged, experiments)
    _note_per_sample(planned, program, engaged, experiments)
    return settled, program


def _faster(eager: Program, other: Program, name: str, why: str, left_s: float) -> tuple[Program, str]:
    """The other program if it is certainly faster, and why."""
    if name == "compiled" and not other.compiled:
        return other, why
    arms = {key: partial(next, map(each.latest, count())) for key, each in (("eager", eager), (name, other))}
    comparison = compared(arms, eager.device, base="eager", seconds=min(_COMPARE_SECONDS, left_s))
    gain = comparison.arms[name]
    if certainly_faster(comparison, name, eager.device):
        return other, f"{why}; measured {gain}"
    return eager, f"{why}, but it is not certainly faster: {gain}"


def _in_few_kernels(
    planned: RunPlan, program: Program, make: Callable[..., Program], pays: Callable[[Segment], tuple[bool, str]],
    engaged: dict[str, Switch], experiments: Experiments,
) -> Program:  # fmt: skip
    """nnU-Net's chain by `render_fused` where the card can, it pays, and batches stay the same; other chains stay."""
    segment, device = program.latest, planned.device
    if program.compiled or not triton_works(device) or segment.hands_over or not fused_places(segment.stages):
        return program
    chosen = program
    worth_it, why = pays(segment)
    if worth_it:
        try:
            with experiments.running():
                fused = make(fuse=True)
                _build_kernels(fused.latest)
                if all(_alike(segment(number), fused.latest(number)) for number in range(_CHECKED_BATCHES)):
                    chosen, why = _faster(program, fused, "fused", why, experiments.left_s)
                else:
                    why = "its batches are not those of the operations one by one"
        except Exception as error:
            why = f"it failed: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        if chosen is program:
            log.warning("the augmentation runs operation by operation: %s", why)
    engaged["fused batch kernels"] = Switch(chosen is not program, why)
    return chosen


def _build_kernels(segment: Segment) -> None:
    """Build the Triton kernels of a batch together, rather than one by one at their first launch."""
    if not triton_works(segment.device) or segment.compiled or segment.why_not_captured is not None:
        return
    with built_together(), torch.no_grad():
        try:
            segment.rendered(segment.drawn(torch.arange(segment.batch_size, device=segment.device)))
        except Exception as error:
            # A transform of the user's may refuse the zeros that kernels leave here.
            log.info("the kernels of a batch are built one by one: %s", first_line(error))


def _alike(batch: Batch, other: Batch) -> bool:
    """Whether two batches are equal but for rounding, which may take another voxel where two are as near."""
    for key, value in batch.items():
        one, two = value.to(torch.float32), other[key].to(torch.float32)
        apart = (one - two).abs() > 1e-3 * (1 + one.abs())
        if value.dtype != other[key].dtype or not bool(apart.float().mean() < _FEW):
            return False
    return True


def _note_per_sample(planned: RunPlan, program: Program, engaged: dict[str, Switch], experiments: Experiments) -> None:
    """Reports the augmentation steps that run sample by sample, and where time has no limit their cost."""
    slow = planned.augmentation.per_sample
    if not slow:
        return
    seconds = per_sample_seconds(program.latest) if math.isinf(experiments.left_s) else None
    names = "; ".join(f"{step.name} ({step.why})" for step in slow)
    summary = f"{len(slow)} of {len(planned.augmentation.steps)} steps run sample by sample: {names}"
    if seconds is not None:
        summary += f"; {1e3 * seconds:.0f} ms of a batch"
    log.warning("augment.chain: %s", summary)
    engaged["fused augmentation"] = Switch(False, summary)


def per_sample_seconds(segment: Segment) -> float:
    """Seconds per batch of transforms that run sample by sample, by the medians of three batches."""
    batched = [not is_per_sample(stage) for stage in segment.stages]
    fused = dataclasses.replace(
        segment, stages=tuple(stage for stage, keep in zip(segment.stages, batched, strict=True) if keep),
        host_stages=sum(batched[: segment.host_stages]),
    )  # fmt: skip
    whole, without, on_cases = [], [], []
    for draws, bare in zip(segment.draws(0, 3), fused.draws(0, 3), strict=True):
        whole.append(seconds_of(partial(segment.rendered, draws), segment.device))
        without.append(seconds_of(partial(fused.rendered, bare), segment.device))
        if segment.whole_cases is not None:
            on_cases.append(seconds_of(partial(segment.whole_cases.batch, draws.sample.tolist()), segment.device))
    extra_s = sorted(whole)[1] - sorted(without)[1] + (sorted(on_cases)[1] if on_cases else 0.0)
    return max(0.0, extra_s)


def _program(
    planned: RunPlan, arena: Arena, share: Share, rank_cases: RankCases | None, *, compile: bool, fuse: bool = False
) -> Program:
    stages = _stages(planned)

    def segment(arena: Arena, cases: tuple[int, ...] | Dealt, stage: PatchStage) -> Segment:
        run = planned.augmentation
        if stage.patch != planned.config.sample.patch:
            run = with_patch(run, stage.patch)
        return make_segment(
            run.chain, _cases(planned, run, arena, cases), batch_size=stage.batch_size,
            seed=planned.config.train.seed, train_cases=cases, device=planned.device, share=share, compile=compile,
            fuse=fuse, cache_dir=cache_dir(planned.config.cache),
        )  # fmt: skip

    if rank_cases is None:
        cases = arena.index(tuple(case.id for case in planned.train))
        return Program(lambda round, stage: segment(arena, cases, stage), DealingRounds(stages=stages))
    rounds = DealingRounds(stages=stages, samples=rank_cases.assignment.round_samples)
    return Program(lambda round, stage: segment(rank_cases.arena(round), rank_cases.dealt(round), stage), rounds)


def _cases(planned: RunPlan, run: RunChain, arena: Arena, cases: tuple[int, ...] | Dealt) -> CaseSource:
    if not run.transforms:
        return cases_of_arena(arena, planned.case_set.spatial_dims)
    if isinstance(cases, Dealt):
        raise ValueError(
            "distribute.parts: the chain of augment.chain begins with transforms on whole cases, which draw from all "
            "of them; leave distribute.parts out, or begin the chain with a crop"
        )
    whole = WholeCases(
        transforms=run.transforms, keys=run.chain.keys, seed=planned.config.train.seed, items=items_of_arena(arena),
        train_cases=cases,
    )  # fmt: skip
    return CaseSource(store=store_of_batch(whole.batch([0])[0], "cpu"), whole_cases=whole)


def _stages(planned: RunPlan) -> tuple[PatchStage, ...]:
    """Stages of the whole run; one where patches keep their size."""
    sample, train = planned.config.sample, planned.config.train
    least = 3 if planned.device.type == "cpu" and train.precision == "bf16" else 1  # as for `keep_layers`
    unit = divisor(planned.config.network)
    return stage_plan(
        sample.stages, train.steps, sample.patch, unit, sample.batch_size, sample.stage_voxels, least=least
    )


def _compile_pays(
    eager: Segment, *, steps: int, step_seconds: float, experiments: Experiments, known: bool
) -> tuple[bool, str]:
    """Compare what compiling saves over the run, or over its steps that fit into its time, with what it costs."""
    device = eager.device
    with experiments.running():
        _, *later = [seconds_of(partial(eager, 0), device) for _ in range(3)]
    batch_s = min(later)
    text = f"an eager batch takes {1e3 * batch_s:.0f} ms"
    steps = int(min(steps, max(0.0, experiments.run_s) / (batch_s + step_seconds)))
    saves = _SAVED.get(device.type, 0.8) * batch_s * steps
    cost = _COMPILE_SECONDS.get(device.type, 60.0) / (10 if known else 1)
    kernel = "a kernel compiled by an earlier run" if known else "compiling"
    refusal = experiments.refusal(cost, saves)
    if refusal:
        return False, f"{text} in {steps} steps; {kernel} is not tried: {refusal}"
    others = other_cores(_LOAD_SECONDS) if device.type == "cpu" else 0.0
    if others > BUSY:
        return False, f"{text}; other programs use {others:.1f} cores, so that nothing can be compared"
    return True, f"{text}, so {kernel} (about {cost:.0f} s) would save about {saves:.0f} s in {steps} steps"


def _kernel_marker(planned: RunPlan) -> Path:
    """A marker file: torch's compile cache holds this program."""
    sample = dataclasses.replace(planned.config.sample, compile=None)
    channels, dims = len(planned.case_set.channels), planned.case_set.spatial_dims
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    augment = dataclasses.asdict(planned.config.augment)
    key = digest([torch.__version__, dataclasses.asdict(sample), augment, channels, dims, str(planned.device), folder])
    return cache_dir(planned.config.cache) / "measured" / f"kernel-{key}"
