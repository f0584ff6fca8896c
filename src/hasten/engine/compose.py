"""Assembly of a training run: `prepare_run` makes the plan and the cases, `compose_run` the components."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import nn

from hasten.cache.arena import Arena
from hasten.config.load import to_dict
from hasten.config.schema import RunConfig
from hasten.config.settled import PlannedTrain
from hasten.distribute.case_assignment import RankCases
from hasten.distribute.consensus import local_rank0_first, require_same, run_on_all_ranks, run_on_rank0
from hasten.distribute.group import long_timeout_group
from hasten.distribute.launch.job_fingerprint import start_facts
from hasten.distribute.strategy import Strategy, alone
from hasten.engine.allocator import keep_freed_memory
from hasten.engine.autotune import (
    Group,
    operated_net,
    settle_activations,
    settle_autotuning,
    settle_batch_size,
    settle_capture,
    settle_network,
    settle_variant_on_all,
    steps_to_come,
    with_fitted_stages,
)
from hasten.engine.budget import choose_scale, with_scale
from hasten.engine.cases import homes_of, prepare_cases
from hasten.engine.components import RunComponents
from hasten.engine.core_follower import keep_threads
from hasten.engine.experiments import Experiments
from hasten.engine.initial import Start, start_of, with_head
from hasten.engine.measure import Switch
from hasten.engine.precision import scaler_for
from hasten.engine.ranks import rank_mistakes, share_of
from hasten.engine.recorded_split import require_same_cases
from hasten.engine.run_plan import RunPlan, inference_of, plan_run, tell_data, tell_network, with_train
from hasten.engine.sampling import settle_program
from hasten.engine.step import TrainStep, memory_format
from hasten.engine.update import Update
from hasten.engine.variant import variant_of
from hasten.nets.build import Loss
from hasten.nets.cpu.kernels import cpu_kernels
from hasten.nets.freeze import freeze_norms
from hasten.observe.clock import Clock
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer, fusion_of, paced_schedule
from hasten.optim.schedule import PacedSchedule

log = logging.getLogger(__name__)


def prepare_run(
    config: RunConfig,
    plan: Path | None,
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
            planned = plan_run(config, plan, world=world, device=device)
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
            experiments = Experiments(clock, planned.config.train.max_seconds)
            scale = None if resume else run_on_rank0(world, lambda: choose_scale(planned, experiments), group=group)
            planned = with_scale(planned, scale)
            start = None if resume else run_on_all_ranks(world, lambda: start_of(planned), group=group)
        if start is not None and world.first:
            log.warning("%s", start.table())
        with clock.span("prepare"):
            prepared = run_on_all_ranks(world, lambda: prepare_cases(planned, clock, strategy, group), group=group)
        planned, arena, rank_cases = prepared
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
    planned: RunPlan, arena: Arena, clock: Clock, strategy: Strategy | None = None, *, group: Group = None,
    rank_cases: RankCases | None = None, network: nn.Module | None = None, start: Start | None = None,
    experiments: Experiments | None = None, resume: bool = False,
) -> RunComponents:  # fmt: skip
    """Build network, measured settings and batch program on prepared cases. `Loop` adds the feed and runs the steps.

    The order matters, as each stage is measured with the outcome of those before it. `engaged` collects the outcomes.

    rank_cases: the training cases, where they are dealt into parts; `arena` then holds those of validation. network: as
    `operated_net` or `build_net` makes it; None builds it, with the weights of `start` where there is one.
    experiments: the account of those before. resume: the stages of patches are those of the run that goes on.
    """
    experiments = experiments or Experiments(clock, planned.config.train.max_seconds)
    strategy, engaged, surgery = strategy or alone(), dict[str, Switch](), None
    if not strategy.whole_network:
        # Neither is the network compiled nor a loss scaled where a rank has but a part of it.
        planned = with_train(planned, compile=False, capture=False)
    with clock.span("tune"):
        tell_network(planned, clock)
        # 1. The network, with surgery.
        if network is None:
            network, surgery = operated_net(planned, start.fit.values if start is not None else None)
        # 2. Precision and memory format, which surgery and kept memory change.
        freed_memory = keep_freed_memory() if planned.device.type == "cpu" else None
        planned, step_seconds = settle_variant_on_all(planned, network, experiments, strategy, group, engaged)
        steps = run_on_rank0(strategy.world, lambda: steps_to_come(planned, experiments, step_seconds), group=group)
        if not resume:
            planned = with_fitted_stages(planned, steps)
        if freed_memory is not None:
            engaged["kept host memory"] = freed_memory
        if surgery is not None:
            engaged["surgery"] = Switch(surgery.fused + surgery.biases > 0, str(surgery))
            if planned.device.type == "cpu":
                engaged["compiled CPU functions"] = Switch(cpu_kernels().functions is not None, cpu_kernels().why)
    planned = with_head(planned, network, start)  # which layers train first on loaded weights
    dims, device = planned.case_set.spatial_dims, planned.device
    layout = memory_format(dims, variant_of(planned.config.train).channels_last)  # the optimizer's moments get it too
    network.to(memory_format=layout)  # type: ignore[call-overload]
    # 3. Which activations are kept, and so which batch fits.
    settle_activations(planned, network, engaged)
    planned = settle_batch_size(planned, network, engaged)
    train = planned.config.train
    clock.tell("building   the batch program and the step")
    with clock.span("compile"):
        # 4. The batch program.
        share = share_of(planned, strategy)
        planned, program = settle_program(
            planned, arena, share, rank_cases, engaged, experiments=experiments, step_seconds=step_seconds
        )
        # 5. The strategy places the weights; then the optimizer takes them up, for the step.
        network, average = strategy.place(network, average_of(network) if train.ema > 0 else None)
        freeze_norms(network, train.freeze)
        paced = paced_schedule(train, planned.config.sample.batch_size)
        loss = planned.loss(over_ranks=planned.config.distribute.sync_loss and strategy.same_loss)
        step = make_step(train, network, loss, paced, average, strategy, dims, device)
        # 6. cuDNN's algorithms, then compilation, if the steps take long enough; the strategy wraps what is compiled.
        seconds = step_seconds * steps
        settle_autotuning(step, seconds, engaged)
        planned, compiled = settle_network(planned, network, seconds, engaged, experiments, strategy.world)
        if planned.config.train.compile:
            keep_threads()
        step.network = strategy.wrap(compiled)
        step.fused_kernels = not planned.config.train.compile and variant_of(train).fused_kernels
    engaged |= {"fused optimizer": Switch(True, fusion_of(train.optimizer)), **homes_of(arena, rank_cases)}
    if start is not None:
        engaged["weights to start from"] = Switch(True, start.summary())
    # 7. The finished step with its batch as a CUDA graph; whether it is used is decided some steps into the run.
    planned, captured = settle_capture(planned, step, program, engaged, steps)
    return RunComponents(
        settings=to_dict(planned.config), train=planned.config.train, observe=planned.config.observe,
        timeout_s=planned.config.distribute.timeout_s, planned=planned, arena=arena, step=step, program=program,
        captured=captured, engaged=engaged, paced=paced, start=start.record() if start is not None else None,
        inference=inference_of(
            planned.config, spatial_dims=dims, device=device, classes=planned.num_outputs,
            overlapping=bool(planned.regions),
        ),
    )  # fmt: skip


def make_step(
    train: PlannedTrain,
    network: nn.Module,
    loss: Loss,
    paced: PacedSchedule,
    average: nn.Module | None,
    strategy: Strategy,
    spatial_dims: int,
    device: torch.device,
) -> TrainStep:
    """The step and its optimizer, on the uncompiled network, which owns the weights."""
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
        network=network.train(),
        loss=loss,
        update=update,
        precision=variant.precision,
        channels_last=variant.channels_last,
        spatial_dims=spatial_dims,
        device=device,
        accumulate=train.accumulate,
        strategy=strategy,
    )
