"""Experiments on the rest of the step: the optimizer, clearing gradients, the anomaly mode."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .exp_net import Net, difference, free_memory
from .exp_time import versus


def fused(optimizer: Any, site: str, session: Any, seconds: float) -> dict[str, Any]:
    """A step of the optimizer as it is against one of the same class with fused=True, both on clones."""
    kind = type(optimizer)
    if "fused" not in inspect.signature(kind.__init__).parameters:
        return {"skipped": f"{kind.__name__} takes no `fused`"}
    if optimizer.param_groups[0].get("fused"):
        return {"skipped": "fused already"}
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return {"skipped": "differentiable, which `fused` isn't"}
    parameters = _parameters(optimizer)
    if any(p.is_sparse or not p.is_floating_point() for p in parameters):
        return {"skipped": "parameters that `fused` doesn't take"}
    num_bytes = sum(p.numel() * p.element_size() for p in parameters)
    free, _ = free_memory(parameters[0].device)
    if free and 10 * num_bytes > free:
        return {"skipped": "no memory for two copies of the parameters and their state"}
    plain, fast = _cloned(optimizer, {}), _cloned(optimizer, {"fused": True, "foreach": None})
    sync = torch.cuda.synchronize if parameters[0].is_cuda else None
    plain.step()
    fast.step()
    deviation = max(
        difference(one, other)
        for one, other in zip(_parameters(plain), _parameters(fast))  # noqa: B905
    )
    result = versus(plain.step, fast.step, seconds, sync)
    foreach = optimizer.param_groups[0].get("foreach")
    result.update(site=site, tensors=len(parameters), difference=deviation, foreach=foreach)
    return {**result, "class": kind.__name__}


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _cloned(optimizer: Any, changed: dict[str, Any]) -> Any:
    """The same class and options on cloned parameters, each with a gradient that is the same in every clone."""
    generator = torch.Generator().manual_seed(0)
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        options.update((key, value) for key, value in changed.items() if key in options)
        clones = []
        for parameter in group["params"]:
            clone = parameter.detach().clone().requires_grad_()
            clone.grad = torch.empty_like(clone).copy_(1e-3 * torch.randn(clone.shape, generator=generator))
            clones.append(clone)
        groups.append({**options, "params": clones})
    accepted = inspect.signature(type(optimizer).__init__).parameters
    options = {key: value for key, value in {**optimizer.defaults, **changed}.items() if key in accepted}
    return type(optimizer)(groups, **options)


def zero_grad(optimizer: Any, session: Any, seconds: float) -> dict[str, Any]:
    """Seconds that writing zeros into the gradients takes, beside forgetting them."""
    clone = _cloned(optimizer, {})
    parameters = _parameters(clone)
    gradients = [p.grad for p in parameters]
    sync = torch.cuda.synchronize if parameters[0].is_cuda else None

    def forget() -> None:
        for parameter, gradient in zip(parameters, gradients):  # noqa: B905
            parameter.grad = None
            # As a backward does: it hands its tensor over where there is none, and adds where there is one.
            parameter.grad = gradient

    def write() -> None:
        for parameter, gradient in zip(parameters, gradients):  # noqa: B905
            assert gradient is not None
            gradient.zero_()
            gradient.add_(0.0)
            parameter.grad = gradient

    return versus(write, forget, seconds, sync)


def anomaly(net: Net, session: Any, seconds: float) -> dict[str, Any]:
    """Forward and backward under anomaly detection, the base, against without."""
    cycle = net.cycle(net.copied())

    def watched() -> None:
        with torch.autograd.set_detect_anomaly(True):
            cycle()

    return versus(watched, cycle, seconds, net.sync)
