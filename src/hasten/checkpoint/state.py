"""The complete state of a training loop, of Hasten or of a user: saved between two steps, restored bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hasten.checkpoint.weights import describe_mismatch
from hasten.nets.random_state import random_states, set_random_states
from hasten.optim.base import lay_out_moments


def training_state(
    *,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    average: nn.Module | None = None,
    scaler: torch.amp.GradScaler | None = None,
    schedule: LRScheduler | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a checkpoint holds after `step` steps: weights, moments, average, scaler, schedule, random generators.

    Tensors are the live ones: save them before the next step, or give them to `Saver.save`, which copies them.

    Args:
        network: the module that has the parameters, neither compiled nor wrapped.
        optimizer: with its moments.
        step: number of finished steps.
        average: of the weights, such as `average_of` or torch's AveragedModel.
        scaler, schedule: where the loop has them.
        extra: the loop's own counters, and the position of its data.

    Example:
        >>> import torch
        >>> network = torch.nn.Conv3d(1, 2, 3)
        >>> optimizer = torch.optim.AdamW(network.parameters())
        >>> state = hasten.training_state(network=network, optimizer=optimizer, step=100)
        >>> torch.save(state, "last.pt")
    """
    host, *gpu = random_states(next(network.parameters()).device)
    return {
        "step": step,
        "network": network.state_dict(),
        "average": average.state_dict() if average is not None else None,
        "optimizer": optimizer.state_dict(),
        "optimizer_name": type(optimizer).__name__,
        "scaler": scaler.state_dict() if scaler is not None else {},
        "schedule": schedule.state_dict() if schedule is not None else None,
        "random_state": host,
        "device_random_state": next(iter(gpu), None),
        "extra": dict(extra or {}),
    }


def restore_state(
    state: Mapping[str, Any],
    *,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: nn.Module | None = None,
    scaler: torch.amp.GradScaler | None = None,
    schedule: LRScheduler | None = None,
    where: str = "checkpoint",
) -> int:
    """Restore what `training_state` returned.

    Parameters keep the memory format they have here, and moments get it. An average that the state has none of begins
    at its weights. Call it before a step is captured or compiled, as moments are new tensors afterwards.

    Args:
        state: `state["extra"]` is the caller's.
        network, optimizer, average, scaler, schedule: as `training_state` took them.
        where: names the state in errors.

    Returns:
        The state's step.

    Raises:
        ValueError: with nothing changed, for a state of another network, optimizer or precision.

    Example:
        >>> import torch
        >>> network = torch.nn.Conv3d(1, 2, 3)
        >>> optimizer = torch.optim.AdamW(network.parameters())
        >>> state = hasten.training_state(network=network, optimizer=optimizer, step=100)
        >>> step = hasten.restore_state(state, network=network, optimizer=optimizer)
    """
    averaged = state["average"] or state["network"]
    for part, module, weights in (("network", network, state["network"]), ("average", average, averaged)):
        difference = describe_mismatch(module.state_dict(), weights) if module is not None else None
        if difference is not None:
            raise ValueError(f"{where}: {part} of another kind ({difference})")
    scaled = scaler is not None and scaler.is_enabled()
    if scaled and not state["scaler"]:
        raise ValueError(
            f"{where}: saved without loss scaling, which this run has; use the precision it was saved with"
        )
    _check_optimizer(optimizer, state, where)
    network.load_state_dict(state["network"])
    if average is not None:
        average.load_state_dict(averaged)
    _load_optimizer(optimizer, state["optimizer"])
    if scaler is not None:
        scaler.load_state_dict(state["scaler"])
    if schedule is not None and state.get("schedule") is not None:
        schedule.load_state_dict(state["schedule"])
    on_device = state["device_random_state"]
    states = [state["random_state"], *([] if on_device is None else [on_device])]
    set_random_states(states, next(network.parameters()).device)
    return int(state["step"])


def _check_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str) -> None:
    name, saved = type(optimizer).__name__, state.get("optimizer_name")
    # Some optimizers accept each other's state, and training would continue with wrong values.
    if saved not in (None, name):
        raise ValueError(f"{where}: saved with the optimizer {saved}, and this run has {name}; use the same")
    group_sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved_sizes = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
    if group_sizes != saved_sizes:
        raise ValueError(
            f"{where}: the optimizer's groups had {saved_sizes} parameters, and here they have {group_sizes}; "
            "build it as in the run that was saved"
        )


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        # A captured step reads this very tensor, so it is filled in place; a plain number stays a number.
        if isinstance(rate, Tensor):
            group["lr"] = rate.fill_(group["lr"])
        elif isinstance(group["lr"], Tensor):
            group["lr"] = float(group["lr"])
    lay_out_moments(optimizer)
