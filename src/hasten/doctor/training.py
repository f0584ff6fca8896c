"""The doctor's one way into training: all that it takes from `hasten.training` goes through this module."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from hasten.checkpoint.file import Checkpoints
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import training_state
from hasten.config.decision import Accelerators
from hasten.config.url import shown
from hasten.observe.clock import Clock
from hasten.prediction.outputs import make_folder as make_folder
from hasten.runtime.allocator import keep_freed_memory
from hasten.runtime.device import current_device as current_device
from hasten.runtime.device import pick_device as pick_device
from hasten.runtime.device import seconds_of as seconds_of
from hasten.runtime.device import synchronize as synchronize
from hasten.runtime.gc_control import collected_between_steps as collected_between_steps
from hasten.runtime.measure import compared as compared
from hasten.runtime.measure import machine as machine
from hasten.runtime.out_of_memory import out_of_memory as out_of_memory
from hasten.runtime.precision import autocast as autocast
from hasten.runtime.precision import tensor_cores as tensor_cores
from hasten.runtime.precision import to_memory_format
from hasten.training.choose.autotune import choose_compiled, choose_variant, operated_net, with_variant
from hasten.training.choose.batch_program import choose_program
from hasten.training.choose.experiments import Experiments
from hasten.training.components import RunComponents as RunComponents
from hasten.training.compose import compose_run as compose_run
from hasten.training.compose import prepare_run as prepare_run
from hasten.training.plan import RunPlan as RunPlan
from hasten.training.plan import plan_run as plan_run
from hasten.training.plan import with_train as with_train
from hasten.training.prepare_cases import arena_of as arena_of
from hasten.training.step import TrainStep as TrainStep
from hasten.training.validate import validate

_LONG_RUN = 10**6
"""Steps of a run that is long enough for its variants to be compared, rather than the usual one taken."""


def measured_settings(planned: RunPlan, clock: Clock) -> tuple[RunPlan, Accelerators, bool]:
    """Precision, memory format and compilation, measured in the order of `compose_run`, however short the run is.

    Whether compiling pays is judged by the run's own steps. Last, whether other programs made the times doubtful.
    """
    experiments, steps = Experiments(clock), planned.config.train.steps
    clock.tell("reading and preparing the cases")
    arena = arena_of(planned)
    if planned.device.type == "cpu":
        keep_freed_memory()  # as a run does
    network, _ = operated_net(planned)
    clock.tell("timing precisions and memory formats")
    variant, step_s, accelerators = choose_variant(with_train(planned, steps=_LONG_RUN), network, experiments)
    planned = with_variant(planned, variant)
    to_memory_format(network, planned.case_set.spatial_dims, variant.channels_last)
    clock.tell("trying whether compiling pays")
    _, found = choose_program(planned, arena)
    accelerators |= found
    planned, _, found = choose_compiled(planned, network, step_s * steps, experiments)
    return planned, accelerators | found, any(times.others > 0 for times in experiments.timed.values())


def settings_of(components: RunComponents) -> dict[str, Any]:
    """What the figures of a run depend on, by name."""
    planned = components.planned
    sample, train = planned.config.sample, planned.config.train
    names = ("steps", "validate_every", "checkpoint_every", "optimizer", "precision", "channels_last", "compile")
    return {
        "data": shown(planned.config.data.source),
        "device": str(planned.device),
        "home": components.arena.home,
        "train cases": len(planned.train),
        "validation cases": len(planned.validation),
        "patch": sample.patch,
        "batch_size": sample.batch_size,
        **{name: getattr(train, name) for name in (*names, "accumulate")},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def validate_some(components: RunComponents, count: int) -> float:
    """Seconds of a validation of the first `count` cases."""
    few = dataclasses.replace(components.planned, validation=components.planned.validation[:count])
    begin = time.perf_counter()
    validate(dataclasses.replace(components, planned=few), components.validated)
    synchronize(components.planned.device)
    return time.perf_counter() - begin


def save_checkpoint(components: RunComponents, folder: Path) -> tuple[float, float]:
    """Seconds for which a save into `folder` stops the loop, and until it is written."""
    update = components.step.update
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder)
    begin = time.perf_counter()
    with Saver() as saver:
        state = training_state(
            network=update.weights,
            optimizer=update.optimizer,
            step=1,
            average=update.average,
            scaler=update.scaler,
        )
        saver.save(state, checkpoints.write)
        stands = time.perf_counter() - begin
    return stands, time.perf_counter() - begin
