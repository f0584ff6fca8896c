"""The doctor's one way into training: all that it takes from `hasten.training` goes through this module."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from hasten.cache.arena import Arena
from hasten.checkpoint.folder import Checkpoints
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import training_state
from hasten.prediction.infer import WINDOW_BATCH as WINDOW_BATCH
from hasten.prediction.infer import infer_labels
from hasten.prediction.outputs import make_folder as make_folder
from hasten.runtime.allocator import keep_freed_memory as keep_freed_memory
from hasten.runtime.device import pick_device as pick_device
from hasten.runtime.device import synchronize as synchronize
from hasten.runtime.gc_control import collected_between_steps as collected_between_steps
from hasten.runtime.measure import Trace as Trace
from hasten.runtime.measure import agrees as agrees
from hasten.runtime.measure import compared as compared
from hasten.runtime.measure import machine as machine
from hasten.runtime.out_of_memory import out_of_memory as out_of_memory
from hasten.runtime.precision import DTYPES as DTYPES
from hasten.runtime.precision import autocast as autocast
from hasten.runtime.precision import tensor_cores as tensor_cores
from hasten.training.components import RunComponents as RunComponents
from hasten.training.compose import compose_run as compose_run
from hasten.training.compose import prepare_run as prepare_run
from hasten.training.plan import RunPlan as RunPlan
from hasten.training.plan import plan_run as plan_run
from hasten.training.plan import with_train as with_train
from hasten.training.prepare_cases import arena_of as arena_of
from hasten.training.step import TrainStep as TrainStep
from hasten.training.validate import validate


def loss_and_gradient(step: TrainStep, image: Tensor, label: Tensor) -> Trace:
    """Loss and gradient norm of a batch, or of its first piece, on the host; the weights stay as they are."""
    image, label = (part.chunk(step.accumulate)[0] for part in (image, label))
    with tensor_cores(step.device, step.precision):
        loss = step.forward(image, label)
        step.update.backward(loss)
    grads = [weight.grad for weight in step.update.weights.parameters() if weight.grad is not None]
    norm, scaler = nn.utils.get_total_norm(grads), step.update.scaler
    if scaler is not None and scaler.is_enabled():
        norm = norm / scaler.get_scale()
    step.update.weights.zero_grad(set_to_none=True)
    return loss.detach().float().cpu(), norm.float().cpu()


def predicted_labels(components: RunComponents, arena: Arena, cases: tuple[int, ...]) -> Tensor:
    """(N,) class indices of the voxels of these cases of the arena, on the host."""
    network = components.step.update.weights.eval()
    maps = dict(infer_labels(network, [arena.image(case) for case in cases], components.inference))
    return torch.cat([maps[position].reshape(-1).cpu() for position in range(len(cases))])


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
