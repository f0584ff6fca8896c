"""The one place that shows the order in which a run is put together.

network (operated on) -> memory format -> recomputation -> batch program -> average -> strategy's place -> optimizer ->
compile -> strategy's wrap -> CUDA graph -> feed (in the loop).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from torch import nn

from hasten.cache.arena import Arena
from hasten.config.size import parse_size
from hasten.distribute.parts import CaseParts, part_balance
from hasten.distribute.strategy import Strategy, alone
from hasten.engine.batch_size import find_batch_size_for
from hasten.engine.capture import CapturedStep, why_not
from hasten.engine.infer import Inference
from hasten.engine.job import Planned, inference_of, with_train
from hasten.engine.measure import Engaged
from hasten.engine.precision import autocast, scaler_for
from hasten.engine.ranks import share_of
from hasten.engine.settle import Program, example_of, settle_network, settle_program, time_left
from hasten.engine.step import TrainStep, memory_format
from hasten.engine.update import Update
from hasten.nets.recompute.apply import recompute
from hasten.observe.clock import Clock
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer, build_schedule
from hasten.optim.schedule import PacedSchedule
from hasten.sample.program import BatchProgram

log = logging.getLogger(__name__)

_OPTIMIZERS = {
    "adamw": "AdamW with fused=True: one pass over the weights",
    "sgd": "SGD with fused=True: one pass over the weights",
    "muon": "filters of one shape are updated together; AdamW with fused=True on the rest",
}
_FOREACH = "all weights are updated together, one operation after another"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the loop works with."""

    planned: Planned
    """With everything measured settled, so that its configuration repeats this run."""
    arena: Arena
    step: TrainStep
    program: Program
    captured: CapturedStep | None
    """The step and its batch as one CUDA graph, where that is possible and not switched off."""
    inference: Inference
    engaged: dict[str, Engaged]

    paced: PacedSchedule
    """The schedule of the step's updates: the learning rate of each 0-based step."""

    @property
    def validated(self) -> nn.Module:
        """The module that validation and prediction use: the average, or the weights where none is kept."""
        update = self.step.update
        return update.average if update.average is not None else update.weights


def build_parts(
    planned: Planned,
    arena: Arena,
    network: nn.Module,
    clock: Clock,
    *,
    engaged: dict[str, Engaged],
    step_seconds: float,
    strategy: Strategy | None = None,
    held: CaseParts | None = None,
) -> Parts:
    """Put a run together. `network` is contiguous, as `build_net` gives it; `settle_variant` gave engaged and seconds.

    held: the training cases, where they are dealt into parts; `arena` then holds those of validation.
    """
    train, dims = planned.config.train, planned.case_set.spatial_dims
    strategy = strategy or alone()
    assert train.channels_last is not None
    network.to(memory_format=memory_format(dims, train.channels_last))  # type: ignore[call-overload]
    _recompute(planned, network, engaged)
    planned = _fit_batch(planned, network, engaged)
    with clock.span("compile"):
        planned, program, engaged["compiled batch program"] = settle_program(
            planned, arena, share_of(planned, strategy), held
        )
        paced = _schedule(planned)
        step = _step(planned, network, strategy, paced)
        weights = step.update.weights
        seconds = min(step_seconds * paced.steps, time_left(planned, clock))
        planned, compiled, engaged["compiled network"] = settle_network(planned, weights, seconds, strategy.world)
        step.network = strategy.wrap(compiled)
    engaged["fused optimizer"] = Engaged(True, _OPTIMIZERS.get(train.optimizer, _FOREACH))
    trained = arena if held is None else held.arena(0)
    size = f"{trained.num_bytes / 2**20:.0f} MiB for {len(trained.ids)} cases"
    if held is not None:
        engaged["cases in parts"] = Engaged(True, f"{held.deal.parts} parts; {part_balance(held.deal)}")
    engaged["arena home"] = Engaged(True, f"{trained.home}, {size}")
    inference = inference_of(
        planned.config, spatial_dims=dims, device=planned.device, overlapping=bool(planned.regions)
    )
    captured = _captured(planned, step, program, engaged)
    if captured is None:
        planned = with_train(planned, capture=False)
    return Parts(
        planned=planned,
        arena=arena,
        step=step,
        program=program,
        captured=captured,
        inference=inference,
        engaged=engaged,
        paced=paced,
    )


def _recompute(planned: Planned, network: nn.Module, engaged: dict[str, Engaged]) -> None:
    """Throw away and compute again as many activations as the budget asks for."""
    train = planned.config.train
    if train.activations == "all":
        return
    assert train.precision is not None
    with autocast(planned.device, train.precision):
        report = recompute(
            network, example_of(planned), parse_size(train.activations), batch_size=planned.config.sample.batch_size
        )
    if not report.fits:
        log.warning("train.activations: %s; give more, or a smaller sample.batch_size or sample.patch", report)
    engaged["recomputed activations"] = Engaged(bool(report.modules), str(report))


def _fit_batch(planned: Planned, network: nn.Module, engaged: dict[str, Engaged]) -> Planned:
    """The run with the largest batch, if it asks for one; what it settles on is not looked for again on resuming."""
    config = planned.config
    if not config.sample.fit_batch:
        return planned
    train, dims, batch_size = config.train, planned.case_set.spatial_dims, config.sample.batch_size
    assert train.precision is not None
    with autocast(planned.device, train.precision):
        found = find_batch_size_for(
            network,
            planned.loss(),
            tuple(example_of(planned).shape[1:]),
            num_classes=len(planned.case_set.labels),
            device=planned.device,
            layout=memory_format(dims, bool(train.channels_last)),
        )
    engaged["largest batch"] = Engaged(True, f"{found.batch_size} patches instead of {batch_size}: {found.why}")
    sample = replace(config.sample, batch_size=found.batch_size, fit_batch=False)
    planned = replace(planned, config=replace(config, sample=sample))
    return with_train(planned, learning_rate_batch=train.learning_rate_batch or batch_size)


def _captured(planned: Planned, step: TrainStep, program: Program, engaged: dict[str, Engaged]) -> CapturedStep | None:
    """What becomes of it is known only some steps into the run."""
    wanted = planned.config.train.capture
    reason = "set in the configuration" if wanted is False else why_not(step, program)
    if reason is None and planned.config.train.activations != "all" and planned.config.network.dropout > 0:
        reason = "recomputing a dropout asks the host for the random state"
    if reason is not None:
        if wanted:
            log.warning("train.capture: the step can't be captured, as %s", reason)
        engaged["CUDA graph"] = Engaged(False, reason)
        return None
    assert isinstance(program, BatchProgram)
    return CapturedStep(step=step, program=program, always=bool(wanted))


def _schedule(planned: Planned) -> PacedSchedule:
    train = planned.config.train
    assert train.steps is not None
    schedule = build_schedule(train, train.steps, planned.config.sample.batch_size or 1)
    return PacedSchedule(schedule=schedule, steps=train.steps)


def _step(planned: Planned, network: nn.Module, strategy: Strategy, paced: PacedSchedule) -> TrainStep:
    """The step on the uncompiled network, which holds the weights whatever is compiled later."""
    train, shared = planned.config.train, planned.config.distribute
    assert train.precision is not None
    assert train.channels_last is not None
    network, average = strategy.place(network, average_of(network) if train.ema > 0 else None)
    update = Update(
        weights=network,
        optimizer=strategy.share_optimizer(build_optimizer(network, train)),
        schedule=paced,
        average=average,
        average_decay=train.ema,
        clip_norm=train.clip_norm,
        scaler=scaler_for(planned.device, train.precision),
        strategy=strategy,
    )
    return TrainStep(
        network=network.train(),
        loss=planned.loss(over_ranks=shared.sync_loss and strategy.same_loss),
        update=update,
        precision=train.precision,
        channels_last=train.channels_last,
        spatial_dims=planned.case_set.spatial_dims,
        device=planned.device,
        accumulate=train.accumulate,
        strategy=strategy,
    )
