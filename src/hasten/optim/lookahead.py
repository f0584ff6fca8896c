"""Lookahead: every few steps, slow weights move a share of the way to the weights, which are then set to them.

M. Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", NeurIPS 2019 (arXiv:1907.08610).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_KEY = "lookahead"
_OWN = ("inner", "every", "alpha", "_count", "_reads_on_cpu", "_step_supports_amp_scaling")
"""Attributes that a copy needs, besides those that torch's own `__getstate__` keeps."""


class Lookahead(torch.optim.Optimizer):
    """Any torch optimizer with slow weights around it; an optimizer itself, which shares the inner one's groups.

    every: steps of the inner optimizer between two pulls. alpha: share of the way that the slow weights then move.
    The inner optimizer's states are untouched by a pull. `state_dict` is the inner one's with one more entry; one
    without that entry loads too, and the slow weights then start where the weights are.

    Supports torch's protocol for skipped steps if the inner optimizer does: a skipped step is not counted. On a GPU the
    count lies on the device, so that a captured CUDA graph pulls when it should.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, every: int = 6, alpha: float = 0.5) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; Lookahead pulls after at least 1 step")
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha}; it must be above 0 and at most 1")
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner, self.every, self.alpha = optimizer, every, alpha
        self.param_groups = optimizer.param_groups
        self._count: Tensor | None = None
        self._reads_on_cpu = True
        self._step_supports_amp_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _OWN}}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the inner optimizer, and a pull if it is due. Returns the inner step's result."""
        fast = self._parameters()
        for parameter in fast:
            if "slow" not in self.state[parameter]:
                self.state[parameter]["slow"] = parameter.detach().clone()
        slow = [self.state[parameter]["slow"] for parameter in fast]
        found_inf = getattr(self, "found_inf", None)
        loss = self._inner_step(closure)
        count = self._counter(fast)
        if count.device.type == "cpu" and self._reads_on_cpu:
            if found_inf is None or not found_inf:
                count += 1
                if not count % self.every:
                    _pull(fast, slow, self.alpha)
            return loss
        applied = torch.ones_like(count) if found_inf is None else (found_inf == 0).to(count.device, count.dtype)
        count += applied
        _pull_where(fast, slow, self.alpha, applied * (count % self.every == 0))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, the slow weights by the number of their parameter, and the count of steps."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        slow = {numbers[parameter]: state["slow"] for parameter, state in self.state.items() if parameter in numbers}
        return {**self.inner.state_dict(), _KEY: {"slow": slow, "count": self._count}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, or the inner optimizer's state alone. Raises its ValueError."""
        self.inner.load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        self.param_groups = self.inner.param_groups
        self.state.clear()
        lookahead = state_dict.get(_KEY, {"slow": {}, "count": None})
        parameters = self._parameters()
        for number, slow in lookahead["slow"].items():
            parameter = parameters[number]
            self.state[parameter]["slow"] = torch.empty_like(parameter).copy_(slow)
        count = lookahead["count"]
        self._count = None if count is None else count.clone()

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _counter(self, fast: list[Tensor]) -> Tensor:
        """() int64 on the weights' device: number of steps that were not skipped."""
        device = fast[0].device
        if self._count is None:
            self._count = torch.zeros((), dtype=torch.int64, device=device)
        elif self._count.device != device:
            self._count = self._count.to(device)
        return self._count

    def _inner_step(self, closure: Callable[[], Any] | None) -> Any:
        attributes = {name: getattr(self, name) for name in ("grad_scale", "found_inf") if hasattr(self, name)}
        if attributes and not self._step_supports_amp_scaling:
            raise ValueError(
                f"{type(self.inner).__name__} in a Lookahead cannot skip a step by itself: build it with fused=True"
            )
        if attributes.get("found_inf") is not None:
            # torch's kernels look for exactly 1, but a scaler adds up what several devices found.
            attributes["found_inf"] = (attributes["found_inf"] != 0).to(torch.float32)
        for name, value in attributes.items():
            setattr(self.inner, name, value)
        try:
            return self.inner.step(closure)
        finally:
            for name in attributes:
                delattr(self.inner, name)


def _pull(fast: list[Tensor], slow: list[Tensor], alpha: float) -> None:
    torch._foreach_add_(slow, torch._foreach_sub(fast, slow), alpha=alpha)
    torch._foreach_copy_(fast, slow)


def _pull_where(fast: list[Tensor], slow: list[Tensor], alpha: float, due: Tensor) -> None:
    """`_pull` where `due`, () and 1 or 0, is 1; else nothing changes by a single bit."""
    ways = torch._foreach_sub(fast, slow)
    torch._foreach_mul_(ways, due * alpha)
    torch._foreach_add_(slow, ways)
    # Blended and not interpolated: with weights of exactly 0 and 1 it rounds nothing.
    torch._foreach_mul_(fast, 1 - due)
    torch._foreach_add_(fast, torch._foreach_mul(slow, due))
