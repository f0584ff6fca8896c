"""The optimizer with its parameter groups, and the schedule, that a config describes."""

from __future__ import annotations

import torch
from torch import nn

from hasten.config.settled import PlannedTrain
from hasten.optim.base import lay_out_moments
from hasten.optim.groups import exempt_parameters, param_groups, scale_rates, transposed_filters
from hasten.optim.lamb import Lamb
from hasten.optim.lars import Lars
from hasten.optim.muon import Muon
from hasten.optim.novograd import Novograd
from hasten.optim.schedule import FIRST, PacedSchedule, Schedule, one_cycle, scaled_rate, warmup_start

__all__ = ["build_optimizer", "build_schedule", "one_cycle", "paced_schedule"]


def build_optimizer(network: nn.Module, config: PlannedTrain) -> torch.optim.Optimizer:
    """The optimizer of `config.optimizer`, torch's in their fused form.

    Weights of convolutions and linear layers decay; biases, norms and activations don't.
    """
    optimizer = _optimizer(network, config)
    if isinstance(optimizer, torch.optim.AdamW | torch.optim.SGD):
        # Their fused kernels walk weights and states as flat memory: without this, a contiguous network would silently
        # read a checkpoint of channels-last weights in the wrong order.
        optimizer.register_load_state_dict_post_hook(lay_out_moments)
    if config.lr_scale:
        scale_rates(optimizer, network, config.lr_scale, at="train.lr_scale")
    return optimizer


def _optimizer(network: nn.Module, config: PlannedTrain) -> torch.optim.Optimizer:
    rate, decay, momentum = config.learning_rate, config.weight_decay, config.momentum
    groups = param_groups(network, weight_decay=decay)
    match config.optimizer:
        case "muon":
            return Muon(
                network.parameters(),
                lr=rate,
                transposed=transposed_filters(network),
                exempt=exempt_parameters(network),
                weight_decay=decay,
            )
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=True)
        case "novograd":
            return Novograd(groups, lr=rate)
        case "lamb" | "nvlamb":
            return Lamb(groups, lr=rate, nvlamb=config.optimizer == "nvlamb")
        case "lars":
            return Lars(groups, lr=rate, momentum=momentum)


def paced_schedule(config: PlannedTrain, batch_size: int) -> PacedSchedule:
    """`build_schedule` over `config.steps`, which a time limit may shorten during the run."""
    return PacedSchedule(schedule=build_schedule(config, config.steps, batch_size), steps=config.steps)


def build_schedule(config: PlannedTrain, steps: int, batch_size: int) -> Schedule:
    """The schedule of `config.schedule` over `steps`, its peak scaled to `batch_size` where the config asks for it."""
    peak, first, reference = config.learning_rate, FIRST, config.learning_rate_batch
    if reference > 0:
        peak, first = scaled_rate(peak, batch_size, reference), warmup_start(batch_size, reference)
    return Schedule(
        steps=steps,
        peak=peak,
        kind=config.schedule,
        milestones=config.milestones,
        warmup_fraction=config.warmup_fraction,
        first=first,
    )
