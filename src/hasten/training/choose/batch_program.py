"""The batch program of a run: its augmentation and cases."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from hasten.augment.chain import Batch
from hasten.augment.fused import fused_places
from hasten.augment.make_program import CaseSource, cases_of_arena, make_segment
from hasten.augment.program import Program, Segment
from hasten.augment.run_chain import RunChain, with_patch
from hasten.augment.store import store_of_batch
from hasten.augment.whole_cases import WholeCases, items_of_arena
from hasten.cache.arena import Arena
from hasten.config.decision import Accelerator, Accelerators
from hasten.distribute.case_assignment import RankCases
from hasten.files import first_line
from hasten.kernels.build_together import built_together
from hasten.kernels.use import triton_works
from hasten.nets.build import divisor
from hasten.sample.order import Dealt
from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_plan
from hasten.sample.share import WHOLE, Share
from hasten.training.plan import RunPlan

log = logging.getLogger(__name__)

_CHECKED_BATCHES = 8
"""Batches that fused kernels must make as torch's operations do."""
_FEW = 1e-3
"""Share of voxels that may differ in them."""
_FUSED_STEPS = 500
"""Shortest run, in steps, that fuses nnU-Net's chain on a GPU: to build six kernels takes about a second, and a batch
of some 460 launches takes 3.6 ms on an H200."""


def choose_program(
    planned: RunPlan,
    arena: Arena,
    share: Share = WHOLE,
    rank_cases: RankCases | None = None,
    *,
    steps: int | None = None,
) -> tuple[Program, Accelerators]:
    """The batch program of a rank's share, fused on a GPU in all but short runs.

    rank_cases: the training cases, where they are dealt into parts; else they lie in `arena`. steps: those that the run
    will make; None makes all that are planned. Raises ValueError for an augmentation that these cases don't allow.
    """
    make = partial(_program, planned, arena, share, rank_cases)
    program, accelerators = make(), Accelerators()
    segment = program.latest
    _build_kernels(segment)
    if triton_works(planned.device) and not segment.prepared_on_host and fused_places(segment.stages):
        steps = planned.config.train.steps if steps is None else steps
        program, accelerators["fused batch kernels"] = _in_few_kernels(program, partial(make, fuse=True), steps)
    slow = planned.augmentation.per_sample
    if slow:
        names = "; ".join(f"{step.name} ({step.why})" for step in slow)
        summary = f"{len(slow)} of {len(planned.augmentation.steps)} steps run sample by sample: {names}"
        log.warning("augment.chain: %s", summary)
        accelerators["fused augmentation"] = Accelerator(False, "user", summary)
    return program, accelerators


def _in_few_kernels(program: Program, make: Callable[[], Program], steps: int) -> tuple[Program, Accelerator]:
    """nnU-Net's chain on a GPU by `render_fused`, if the run is long enough and batches stay the same."""
    if steps < _FUSED_STEPS:
        return program, Accelerator(False, "default", f"to build its kernels pays in {_FUSED_STEPS} steps or more")
    try:
        fused = make()
        _build_kernels(fused.latest)
        if all(_alike(program.latest(number), fused.latest(number)) for number in range(_CHECKED_BATCHES)):
            return fused, Accelerator(True, "default", "a few kernels make the batches of the operations one by one")
        why = "its batches are not those of the operations one by one"
    except Exception as error:
        why = f"it failed: {first_line(error)}"
    log.warning("the augmentation runs operation by operation: %s", why)
    return program, Accelerator(False, "measured", why)


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
