"""Assembly of a training run: `prepare_run` makes the plan and the cases, `compose_run` the components."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from hasten.augment.program import Program
from hasten.cache.arena import Arena
from hasten.checkpoint.recorded_split import require_same_cases
from hasten.config.decision import Accelerator, Accelerators
from hasten.config.load import to_dict
from hasten.config.schema import RunConfig
from hasten.config.settled import PlannedTrain
from hasten.distribute.case_assignment import RankCases
from hasten.distribute.consensus import local_rank0_first, require_same, run_on_all_ranks, run_on_rank0, start_facts
from hasten.distribute.group import long_timeout_group
from hasten.distribute.strategy import Strategy, alone
from hasten.nets.build import Loss
from hasten.nets.freeze import freeze_norms
from hasten.observe.clock import Clock
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer, paced_schedule
from hasten.optim.schedule import PacedSchedule
from hasten.prediction.infer import inference_of
from hasten.runtime.allocator import keep_freed_memory
from hasten.runtime.core_follower import keep_threads
from hasten.runtime.precision import scaler_for, to_memory_format
from hasten.runtime.variant import variant_of
from hasten.training.capture import CapturedStep
from hasten.training.choose import autotune
from hasten.training.choose.batch_program import choose_program
from hasten.training.choose.budget import choose_scale, with_scale
from hasten.training.choose.experiments import Experiments
from hasten.training.components import RunComponents
from hasten.training.initial import Start, start_of
from hasten.training.plan import RunPlan, plan_run, tell_data, tell_network, with_train
from hasten.training.prepare_cases import homes_of, prepare_cases
from hasten.training.ranks import rank_mistakes, share_of
from hasten.training.step import TrainStep
from hasten.training.update import Update

log = logging.getLogger(__name__)


def prepare_run(
    config: RunConfig,
    clock: Clock,
    strategy: Strategy | None = None,
    device: torch.device | None = None,
    *,
    resume: bool = False,
    begun: Path | None = None,
) -> RunComponents:
    """A run that is ready for its first step. Raises ValueError for what is wrong with the settings or the data.

    Of several ranks, the first one of each host does what is kept in the cache, and rank 0 measures for all. device:
    as for `plan_run`. resume: a checkpoint holds the weights, so that none are loaded to start from. begun: the
    directory of a run that goes on, with the cases that it was begun with.
    """
    strategy = strategy or alone()
    world = strategy.world

    def read_plan() -> RunPlan:
        with local_rank0_first(world, group):
            planned = plan_run(config, world=world, device=device, begun=begun is not None)
        if begun is not None and world.first:
            require_same_cases(begun, planned.train, planned.validation)
        mistakes = rank_mistakes(planned, strategy)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        tell_data(planned, clock)
        return planned

    with long_timeout_group() as group:
        with clock.span("read_plan"):
            planned = run_on_all_ranks(world, read_plan, group=group)
            if world.size > 1:
                ids = [case.id for case in (*planned.train, *planned.validation)]
                require_same(world, start_facts(config, planned.fingerprint, cases=ids))
        with clock.span("prepare"):
            prepared = run_on_all_ranks(world, lambda: prepare_cases(planned, clock, strategy, group), group=group)
        planned, arena, rank_cases = prepared
        # Behind the preparation, which takes a part of the time that steps are planned for.
        experiments = Experiments(clock, planned.config.train.budget)
        with clock.span("tune"):
            scale = None if resume else run_on_rank0(world, lambda: choose_scale(planned, experiments), group=group)
            planned = with_scale(planned, scale)
            start = None if resume else run_on_all_ranks(world, lambda: start_of(planned), group=group)
        if start is not None and world.first:
            log.warning("%s", start.table())
        for warning in planned.warnings if world.first else ():
            log.warning("%s", warning)
        return compose_run(
            planned,
            arena,
            clock,
            strategy,
            group=group,
            rank_cases=rank_cases,
            start=start,
            experiments=experiments,
            resume=resume,
        )


def compose_run(
    planned: RunPlan,
    arena: Arena,
    clock: Clock,
    strategy: Strategy | None = None,
    *,
    group: autotune.Group = None,
    rank_cases: RankCases | None = None,
    start: Start | None = None,
    experiments: Experiments | None = None,
    resume: bool = False,
) -> RunComponents:
    """Build network, measured settings and batch program on prepared cases. `Loop` adds the feed and runs the steps.

    The order matters, as each stage is measured with the outcome of those before it, and returns its accelerators.

    rank_cases: the training cases, where they are dealt into parts; `arena` then holds those of validation. start: the
    weights to start from. experiments: the account of those before. resume: the stages of patches are those of the run
    that goes on.
    """
    experiments = experiments or Experiments(clock, planned.config.train.budget)
    strategy, accelerators = strategy or alone(), Accelerators()
    if not strategy.whole_network:
        # Neither is the network compiled nor a loss scaled where a rank has but a part of it.
        planned = with_train(planned, compile=False, capture=False)
    with clock.span("tune"):
        tell_network(planned, clock)
        # 1. The network: built, then operated on (norms fused, needless biases dropped).
        network, surgery = autotune.operated_net(planned, start.fit.values if start is not None else None)
        accelerators |= autotune.of_surgery(surgery, planned.device)
        # 2. Precision and memory format, timed on the operated network and with the allocator as the run has it.
        if planned.device.type == "cpu":
            accelerators["kept host memory"] = keep_freed_memory()
        planned, step_seconds, found = autotune.choose_variant_on_all(planned, network, experiments, strategy, group)
        accelerators |= found
        # With the seconds of a step it is known how many fit into the time, and so when patches grow.
        world = strategy.world
        steps = run_on_rank0(world, lambda: autotune.steps_to_come(planned, experiments, step_seconds), group=group)
        if not resume:
            planned = autotune.with_fitted_stages(planned, steps)
    dims, device, variant = planned.case_set.spatial_dims, planned.device, variant_of(planned.config.train)
    to_memory_format(network, dims, variant.channels_last)  # the optimizer's moments get it too
    # 3. Which activations are kept, and so which batch fits.
    accelerators |= autotune.choose_activations(planned, network)
    planned, found = autotune.choose_batch_size(planned, network)
    accelerators |= found
    train = planned.config.train
    clock.tell("building   the batch program and the step")
    with clock.span("compile"):
        # 4. The batch program, which needs the final size of a batch.
        program, found = choose_program(planned, arena, share_of(planned, strategy), rank_cases, steps=steps)
        accelerators |= found
        # 5. The strategy places the weights (broadcast, shard, cut into parts); the average of them is placed alike.
        network, average = strategy.place(network, average_of(network) if train.ema > 0 else None)
        freeze_norms(network, train.freeze)
        # 6. Compilation, if the steps take long enough for it to pay.
        planned, compiled, found = autotune.choose_compiled(planned, network, step_seconds * steps, experiments, world)
        accelerators |= found
        if planned.config.train.compile:
            keep_threads()
        # 7. The step. Its optimizer holds the placed weights; its forward pass is the compiled network in the
        # strategy's wrapper. A compiler fuses by itself, in place of Hasten's kernels.
        paced = paced_schedule(train, planned.config.sample.batch_size)
        loss = planned.loss(over_ranks=strategy.same_loss)
        called, fused = strategy.wrap(compiled), not planned.config.train.compile and variant.fused_kernels
        step = make_step(train, network, loss, paced, average, strategy, dims, device, called=called, fused=fused)
    accelerators["fused optimizer"] = Accelerator(True, "default", "all weights are updated together")
    accelerators |= homes_of(arena, rank_cases)
    if start is not None:
        accelerators["weights to start from"] = Accelerator(True, "user", start.summary())
    # 8. The finished step with its batch as a CUDA graph; whether it is used is decided some steps into the run.
    planned, captured, found = autotune.choose_capture(planned, step, program, steps)
    accelerators |= found
    return _components(planned, arena, step, program, captured, paced, start, accelerators)


def _components(
    planned: RunPlan,
    arena: Arena,
    step: TrainStep,
    program: Program,
    captured: CapturedStep | None,
    paced: PacedSchedule,
    start: Start | None,
    accelerators: Accelerators,
) -> RunComponents:
    config = planned.config
    return RunComponents(
        settings=to_dict(config),
        train=config.train,
        observe=config.observe,
        timeout_s=config.distribute.timeout_s,
        planned=planned,
        arena=arena,
        step=step,
        program=program,
        captured=captured,
        accelerators=accelerators,
        paced=paced,
        start=start.record() if start is not None else None,
        inference=inference_of(
            config,
            spatial_dims=planned.case_set.spatial_dims,
            device=planned.device,
            classes=planned.num_outputs,
            overlapping=bool(planned.regions),
        ),
    )


def make_step(
    train: PlannedTrain,
    network: nn.Module,
    loss: Loss,
    paced: PacedSchedule,
    average: nn.Module | None,
    strategy: Strategy,
    spatial_dims: int,
    device: torch.device,
    *,
    called: nn.Module | None = None,
    fused: bool = False,
) -> TrainStep:
    """The step and its optimizer. network: uncompiled, as it owns the weights. called: the form of it that is called,
    compiled or wrapped; None calls itself."""
    network.train()
    variant = variant_of(train)
    update = Update(
        weights=network,
        optimizer=strategy.share_optimizer(build_optimizer(network, train)),
        schedule=paced,
        average=average,
        average_decay=train.ema,
        clip_norm=train.clip_norm,
        scaler=scaler_for(device, variant.precision),
        strategy=strategy,
    )
    return TrainStep(
        network=called if called is not None else network,
        loss=loss,
        update=update,
        precision=variant.precision,
        channels_last=variant.channels_last,
        spatial_dims=spatial_dims,
        device=device,
        accumulate=train.accumulate,
        fused_kernels=fused,
        autotune=train.cudnn_benchmark,
        strategy=strategy,
    )
