"""Parameter groups: which parameters weight decay applies to, and learning rates of their own for some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd

from hasten.config.patterns import fitting

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Norm layers, whose parameters do not decay, whatever their number of dimensions."""


def param_groups(network: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for any torch optimizer: the weights that decay, then biases, norms and activations, which do not.

    Every parameter is in one group, in the network's order; a group that would be empty is left out.
    """
    exempt_ids = {id(parameter) for parameter in exempt_parameters(network)}
    decay: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in network.parameters():
        (rest if id(parameter) in exempt_ids else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def exempt_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Parameters that do not decay: of at most one dimension, or of a norm."""
    of_norms = (module.parameters(recurse=False) for module in network.modules() if isinstance(module, _NORMS))
    norms = {id(parameter) for parameters in of_norms for parameter in parameters}
    return [each for each in network.parameters() if each.ndim <= 1 or id(each) in norms]


def scale_rates(
    optimizer: torch.optim.Optimizer, network: nn.Module, factors: Mapping[str, float], *, at: str = "factors"
) -> None:
    """Scale the learning rate of parameters whose names match a pattern of `factors`, in place.

    Splits the groups; those with a factor store it as `lr_scale`, which `set_rate` reads. The first matching pattern
    counts. Call it before the first step. Raises ValueError, `at` naming the factors, for a pattern that fits nothing.
    """
    parameters = dict(network.named_parameters())
    factor: dict[int, float] = {}
    for pattern, value in factors.items():
        for name in fitting(list(parameters), pattern, at=at):
            factor.setdefault(id(parameters[name]), value)

    divided = []
    for group in optimizer.param_groups:
        parts: dict[float, list[Tensor]] = {}
        for parameter in group["params"]:
            parts.setdefault(factor.get(id(parameter), 1.0), []).append(parameter)
        for value, members in parts.items():
            scaled = {"lr_scale": value, "lr": group["lr"] * value} if value != 1.0 else {}
            divided.append({**group, "params": members, **scaled})
    optimizer.param_groups[:] = divided


def transposed_filters(network: nn.Module) -> list[Tensor]:
    """The filters (in, out, *S) of transposed convolutions, whose first axis is the input's (as Muon must know)."""
    return [module.weight for module in network.modules() if isinstance(module, _ConvTransposeNd)]
