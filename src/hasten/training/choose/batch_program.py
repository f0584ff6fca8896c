"""The batch program of a run: its augmentation and cases."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor

from hasten.augment.chain import Batch
from hasten.augment.fused import fused_places
from hasten.augment.make_program import CaseSource, cases_of_arena, make_segment
from hasten.augment.program import Program, Segment
from hasten.augment.run_chain import RunChain, with_patch
from hasten.augment.store import store_of_batch
from hasten.augment.whole_cases import WholeCases, items_of_arena
from hasten.cache.arena import Arena
from hasten.config.decision import Accelerator, Accelerators
from hasten.config.settled import PlannedTrain
from hasten.distribute.case_assignment import RankCases
from hasten.files import first_line
from hasten.kernels.build_together import built_together
from hasten.kernels.use import triton_works
from hasten.nets.build import divisor
from hasten.observe.clock import Clock
from hasten.runtime.device import seconds_of
from hasten.runtime.measure import certainly_faster, compared
from hasten.runtime.side_stream import SideStream
from hasten.sample.order import Dealt
from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_plan
from hasten.sample.share import WHOLE, Share
from hasten.training.choose.experiments import Experiments
from hasten.training.plan import RunPlan

log = logging.getLogger(__name__)

_COMPARE_SECONDS = 10.0
"""Time limit, in seconds, of comparing two programs."""
_CHECKED_BATCHES = 8
"""Batches that fused kernels must make as torch's operations do, before they are timed."""
_FEW = 1e-3
"""Share of voxels that may differ in them."""
_FUSE_SECONDS, _FUSED_SAVES = 1.5, 0.8
"""Seconds that fusing nnU-Net's chain on a GPU costs (six kernels, built together in about one; the batches that are
checked and timed), and the share of a batch's time that it is likely to save."""


def choose_program(
    planned: RunPlan,
    arena: Arena,
    share: Share = WHOLE,
    rank_cases: RankCases | None = None,
    *,
    experiments: Experiments | None = None,
    step_seconds: float = 0.0,
) -> tuple[Program, Accelerators]:
    """The batch program of a rank's share, fused on a GPU if that pays.

    rank_cases: the training cases, where they are dealt into parts; else they lie in `arena`. experiments: of the run;
    None limits nothing. step_seconds: of a step without its batch. Raises ValueError for an augmentation that these
    cases don't allow.
    """
    make = partial(_program, planned, arena, share, rank_cases)
    program, accelerators = make(), Accelerators()
    segment = program.latest
    _build_kernels(segment)
    if triton_works(planned.device) and not segment.prepared_on_host and fused_places(segment.stages):
        program, accelerators["fused batch kernels"] = _in_few_kernels(
            program,
            partial(make, fuse=True),
            planned.config.train,
            step_seconds,
            experiments or Experiments(Clock()),
        )
    slow = planned.augmentation.per_sample
    if slow:
        names = "; ".join(f"{step.name} ({step.why})" for step in slow)
        summary = f"{len(slow)} of {len(planned.augmentation.steps)} steps run sample by sample: {names}"
        log.warning("augment.chain: %s", summary)
        accelerators["fused augmentation"] = Accelerator(False, "user", summary)
    return program, accelerators


def _in_few_kernels(
    program: Program, make: Callable[[], Program], train: PlannedTrain, step_seconds: float, experiments: Experiments
) -> tuple[Program, Accelerator]:
    """nnU-Net's chain on a GPU by `render_fused`, if it pays and batches stay the same."""
    segment, chosen = program.latest, program
    with experiments.running():
        batch = _as_run(segment, train)
        _, *later = [seconds_of(batch, segment.device) for _ in range(3)]
    batch_s = min(later)
    fitting = int(min(train.steps, max(0.0, experiments.run_s) / (batch_s + step_seconds)))
    why = f"a batch takes {1e3 * batch_s:.1f} ms in {fitting} steps"
    refusal = experiments.refusal(_FUSE_SECONDS, _FUSED_SAVES * batch_s * fitting)
    if refusal:
        return program, Accelerator(False, "measured", f"{why}; fusing is not tried: {refusal}")
    try:
        with experiments.running():
            fused = make()
            _build_kernels(fused.latest)
            if all(_alike(segment(number), fused.latest(number)) for number in range(_CHECKED_BATCHES)):
                arms = {"eager": batch, "fused": _as_run(fused.latest, train)}
                limit_s = min(_COMPARE_SECONDS, experiments.left_s)
                comparison = compared(arms, segment.device, base="eager", seconds=limit_s)
                gain = comparison.arms["fused"]
                if certainly_faster(comparison, "fused", segment.device):
                    chosen, why = fused, f"{why}; measured {gain}"
                else:
                    why = f"{why}, but it is not certainly faster: {gain}"
            else:
                why = "its batches are not those of the operations one by one"
    except Exception as error:
        why = f"it failed: {first_line(error)}"
    if chosen is program:
        log.warning("the augmentation runs operation by operation: %s", why)
    return chosen, Accelerator(chosen is not program, "measured", why)


def _as_run(segment: Segment, train: PlannedTrain) -> Callable[[], object]:
    """A call that makes a batch as the run will: within a CUDA graph where the step can be one.

    Launches, which take the most of an eager batch's time, are nearly free in a graph.
    """
    eager = partial(next, map(segment, count()))
    if segment.why_not_captured is not None or train.capture is False:
        return eager
    sample = torch.arange(segment.batch_size, device=segment.device)

    def batch() -> Tensor:
        with torch.no_grad():
            return segment.rendered(segment.drawn(sample))["image"]

    side = SideStream(segment.device)
    try:
        side.run(batch)  # warm-up
        graph, _ = side.capture(batch)
    except Exception as error:  # the run's capture will fail alike, and say so
        log.info("a batch is timed without a graph: %s", first_line(error))
        return eager
    return graph.replay


def _build_kernels(segment: Segment) -> None:
    """Build the Triton kernels of a batch together, rather than one by one at their first launch."""
    if not triton_works(segment.device) or segment.why_not_captured is not None:
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


def _program(
    planned: RunPlan,
    arena: Arena,
    share: Share,
    rank_cases: RankCases | None,
    *,
    fuse: bool = False,
) -> Program:
    stages = _stages(planned)

    def segment(arena: Arena, cases: tuple[int, ...] | Dealt, stage: PatchStage) -> Segment:
        run = planned.augmentation
        if stage.patch != planned.config.sample.patch:
            run = with_patch(run, stage.patch)
        return make_segment(
            run.chain,
            _cases(planned, run, arena, cases),
            batch_size=stage.batch_size,
            seed=planned.config.train.seed,
            train_cases=cases,
            device=planned.device,
            share=share,
            fuse=fuse,
        )

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
        transforms=run.transforms,
        keys=run.chain.keys,
        seed=planned.config.train.seed,
        items=items_of_arena(arena),
        train_cases=cases,
    )
    return CaseSource(store=store_of_batch(whole.batch([0])[0], "cpu"), whole_cases=whole)


def _stages(planned: RunPlan) -> tuple[PatchStage, ...]:
    """Stages of the whole run; one where patches keep their size."""
    sample, train = planned.config.sample, planned.config.train
    least = 3 if planned.device.type == "cpu" and train.precision == "bf16" else 1  # as for `keep_layers`
    unit = divisor(planned.config.network)
    return stage_plan(sample.stages, train.steps, sample.patch, unit, sample.batch_size, keep_voxels=True, least=least)
