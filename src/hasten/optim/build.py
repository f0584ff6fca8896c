"""The optimizer, its parameter groups, and the one-cycle schedule as a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from hasten.config.schema import TrainConfig
from hasten.optim.muon import Muon


def build_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Muon with AdamW, or AdamW alone, in its fused form.

    Weights of convolutions and linear layers decay; biases, norms and activations don't.
    """
    assert config.learning_rate is not None
    if config.optimizer == "muon":
        upward = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        transposed = [module.weight for module in network.modules() if isinstance(module, upward)]
        return Muon(
            network.parameters(), lr=config.learning_rate, transposed=transposed, weight_decay=config.weight_decay
        )
    decay: list[nn.Parameter] = []
    keep: list[nn.Parameter] = []
    for parameter in network.parameters():
        (decay if parameter.ndim > 1 else keep).append(parameter)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": keep, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99), fused=True)


def one_cycle(step: int, *, steps: int, peak: float, warmup_fraction: float) -> float:
    """Learning rate of a 0-based step: a linear rise from peak / 25, then a cosine fall to peak / 1000.

    As L. Smith's one-cycle policy with one momentum.
    """
    warmup = max(1, round(steps * warmup_fraction))
    if step < warmup:
        return peak * (0.04 + 0.96 * step / warmup)
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * progress)))
