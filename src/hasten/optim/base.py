"""Base class of Hasten's optimizers: parameter selection, states in the weights' memory format, skipped steps.

The states of a parameter are created at its first gradient. The fused kernels of torch walk parameter, gradient
and states as flat memory, so each has the parameter's strides; a state that lies otherwise (a checkpoint of another
memory format, a network that was converted meanwhile) is copied over once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def lay_out_moments(optimizer: torch.optim.Optimizer) -> None:
    """Convert the moments to their parameter's memory format, which may have changed since they were saved.

    torch's fused kernels walk both as flat memory and are silently wrong where they differ (torch 2.13).
    """
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                continue
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = laid_as(parameter, value)


def laid_as(like: Tensor, value: Tensor) -> Tensor:
    """`value`, in the shape of `like`: itself, or a copy of it with the strides and on the device of `like`."""
    if value.stride() == like.stride() and value.device == like.device:
        return value
    return torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)


@dataclass(frozen=True, slots=True)
class Amp:
    """The inputs of torch's AMP protocol for one step; each () and on the device."""

    scale: Tensor | None
    """Gradients are to be divided by this."""
    skip: Tensor | None
    """Bool: leave parameters and states as they are."""

    @property
    def found_inf(self) -> Tensor | None:
        """`skip` as torch's fused kernels take it: () float32, exactly 1 or 0."""
        return None if self.skip is None else self.skip.to(torch.float32)

    def of_torch(self) -> dict[str, Any]:
        """The arguments of torch's fused kernels."""
        return {"grad_scale": self.scale, "found_inf": self.found_inf}

    def scaled_by(self, factor: Tensor | None) -> Tensor | None:
        """The product () of `scale` and `factor` (), either of which may be missing."""
        if self.scale is None or factor is None:
            return factor if self.scale is None else self.scale
        return self.scale * factor

    def unscaled(self, norm: Tensor) -> Tensor:
        """Norms of gradients, of any shape, as they would be had they been divided."""
        return norm if self.scale is None else norm / self.scale


PLAIN = Amp(None, None)


class BaseOptimizer(torch.optim.Optimizer):
    """Base of the optimizers in this package.

    Its `step` follows the protocol of torch's fused ones (`_step_supports_amp_scaling`): with `grad_scale` set the
    gradients are divided by it, and where `found_inf` is not 0 the step changes nothing, even for NaN gradients. The
    host never synchronizes with a GPU; on a CPU, where reading is free, it reads `found_inf`.
    `lr` of a group is a float, or a () tensor on the device, as a captured CUDA graph needs it.
    """

    _step_supports_amp_scaling = True
    _reads_on_cpu = True

    # torch hides these from torch.compile by a wrapper whose first call imports the compiler, which takes 1.3 s.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_scratch", {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. closure: recomputes the loss, which is returned.

        Overwrites the gradients: their values are undefined afterwards.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        amp = self._amp()
        if amp is not None:
            self._update(amp)
        return loss

    def _update(self, amp: Amp) -> None:
        """Change the parameters and states of every group."""
        raise NotImplementedError

    def _amp(self) -> Amp | None:
        """None if the host knows that the step is skipped."""
        # GradScaler sets both before a step and deletes them after it; a class attribute would be in its way.
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and self._reads(found_inf):
            return None if bool(found_inf) else Amp(scale, None)
        return Amp(scale, None if found_inf is None else found_inf != 0)

    def _reads(self, value: Tensor) -> bool:
        """Whether the host can read this value without synchronizing."""
        return value.device.type == "cpu" and self._reads_on_cpu

    def _moving(self, group: dict[str, Any]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Parameters of a group that have a gradient, and their gradients: one pair of lists per device and dtype."""
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                parameters, gradients = groups.setdefault((parameter.device, parameter.dtype), ([], []))
                parameters.append(parameter)
                gradients.append(laid_as(parameter, gradient))
        yield from groups.values()

    def _moments(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The state `name` of each: of its shape, dtype and strides, 0 at first."""
        return [_state_like(self.state[parameter], name, parameter) for parameter in parameters]

    def _adamw(
        self, target: list[Tensor], parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], amp: Amp
    ) -> None:
        """torch's fused AdamW on `target`, with the states of `parameters`; a skipped step is not counted."""
        moments, squares = (self._moments(parameters, name) for name in ("exp_avg", "exp_avg_sq"))
        steps, scaled, (beta1, beta2) = self._scalars(parameters, "step"), amp.of_torch(), group["betas"]
        options = {name: group[name] for name in ("lr", "weight_decay", "eps")}
        options |= {"beta1": beta1, "beta2": beta2, "amsgrad": False, "maximize": False}
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(target, gradients, moments, squares, [], steps, **options, **scaled)
        if scaled["found_inf"] is not None:
            torch._foreach_sub_(steps, [scaled["found_inf"]] * len(steps))

    def _scratches(self, parameters: list[Tensor]) -> list[Tensor]:
        """Scratch memory of each parameter's size; undefined between steps and not in the state_dict."""
        scratch: dict[Tensor, Tensor] = self.__dict__.setdefault("_scratch", {})
        return [_state_like(scratch, parameter, parameter) for parameter in parameters]

    def _scalars(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The state `name` of each: () float32 on its device, 0 at first."""
        values = []
        for parameter in parameters:
            state = self.state[parameter]
            value = state.get(name)
            if value is None:
                value = state[name] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            elif value.device != parameter.device or value.dtype != torch.float32:
                value = state[name] = value.to(parameter.device, torch.float32)
            values.append(value)
        return values


def _state_like(home: dict[Any, Tensor], name: Any, like: Tensor) -> Tensor:
    value = home.get(name)
    if value is None:
        value = home[name] = torch.zeros_like(like)
        if value.stride() != like.stride():
            raise ValueError(f"a parameter of {tuple(like.shape)} does not fill its memory; make it contiguous")
    elif value.stride() != like.stride() or value.device != like.device:
        value = home[name] = laid_as(like, value)
    return value


Moving = tuple[Tensor, Tensor, Tensor]
"""A parameter, its gradient and its moment, of one shape."""


def momentum_step(
    one: Moving, *, lr: float | Tensor, momentum: float, factor: float = 1.0, decay: float = 0.0, amp: Amp = PLAIN
) -> None:
    """moment <- momentum * moment + factor * (gradient / amp.scale + decay * parameter); parameter -= lr * moment.

    In one pass. lr: () where it is a tensor. `factor` is 1 without momentum, where no moment is kept. Nothing changes
    where the step is skipped. With a scale the divided gradient is written back.
    """
    assert factor == 1.0 or momentum != 0
    parameter, gradient, moment = one
    options: dict[str, Any] = {"lr": lr, "momentum": momentum, "dampening": 1.0 - factor, "weight_decay": decay}
    options |= {"nesterov": False, "maximize": False, "is_first_step": False}
    torch._fused_sgd_([parameter], [gradient], [moment] if momentum != 0 else [], **options, **amp.of_torch())


def norms_of(tensors: list[Tensor]) -> Tensor:
    """(N,) float32: the 2-norm of each."""
    return torch.stack(torch._foreach_norm(tensors)).to(torch.float32)


def check_rates(*, lr: float | Tensor, eps: float, weight_decay: float, shares: dict[str, float]) -> None:
    """ValueError for a negative rate, or for a share (of a running mean) that is not in [0, 1).

    An lr that is a tensor () is not read.
    """
    for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
        if not isinstance(value, Tensor) and value < 0:
            raise ValueError(f"{name} is {value}; it cannot be negative")
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 0 and below 1")
