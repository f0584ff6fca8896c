"""An optimizer that updates a part of the parameters on this process, and states with other numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


class PartOptimizer(torch.optim.Optimizer):
    """An optimizer with the groups of all parameters; `inner`, whose groups it cuts, has only this part's moments.

    local: by the number of a parameter (counted through all groups) the tensor that is updated here in its place, which
    may be the parameter itself. `state_dict` holds the values of this part under these numbers; `load_state_dict`
    takes from a state of all parameters what belongs to this part.

    It knows torch's protocol for skipped steps if `inner` does. Whatever a loop changes in its groups (the learning
    rate) is passed to `inner` at every step.
    """

    def __init__(self, inner: torch.optim.Optimizer, local: Mapping[int, Tensor]) -> None:
        assert not inner.state, "moments of all parameters would be kept"
        super().__init__([dict(group) for group in inner.param_groups], inner.defaults)
        self.inner = inner
        self.numbers = sorted(local)
        """Numbers of the parameters that are updated here."""
        self._step_supports_amp_scaling = getattr(inner, "_step_supports_amp_scaling", False)
        self._ranges = number_ranges([len(group["params"]) for group in self.param_groups])
        """Numbers of each group's parameters."""
        for group, whole in zip(inner.param_groups, self._ranges, strict=True):
            group["params"] = [local[number] for number in whole if number in local]

    def before(self) -> None:
        """Called before the step of `inner`; for subclasses to override."""

    def after(self) -> None:
        """Called after the step, also on a process without parameters to update; for subclasses to override."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of this process's part. closure: recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _copy_settings(self, self.inner)
        self.before()
        amp_values = {name: getattr(self, name) for name in ("grad_scale", "found_inf") if hasattr(self, name)}
        for name, value in amp_values.items():
            setattr(self.inner, name, value)
        try:
            if self.numbers:
                self.inner.step()
        finally:
            for name in amp_values:
                delattr(self.inner, name)
        self.after()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of all groups, with the moments that are kept on this process."""
        _copy_settings(self, self.inner)
        return renumbered(self.inner.state_dict(), dict(enumerate(self.numbers)), self._ranges)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this process's part of a state. Raises ValueError if its groups differ, and the errors of `inner`."""
        sizes = [len(group["params"]) for group in state_dict["param_groups"]]
        expected = [len(numbers) for numbers in self._ranges]
        if sizes != expected:
            raise ValueError(f"the state has groups of {sizes} parameters, and the optimizer of {expected}")
        places = {number: place for place, number in enumerate(self.numbers)}
        groups = [[places[number] for number in numbers if number in places] for numbers in self._ranges]
        self.inner.load_state_dict(renumbered(state_dict, places, groups))
        _copy_settings(self.inner, self)


def number_ranges(sizes: Sequence[int]) -> list[range]:
    """The numbers of the parameters of groups of these sizes."""
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _copy_settings(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """Copy the settings of the groups, without their parameters."""
    for source_group, target_group in zip(source.param_groups, target.param_groups, strict=True):
        target_group.update({name: value for name, value in source_group.items() if name != "params"})


def renumbered(state: dict[str, Any], numbers: Mapping[int, int], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A state dict with other numbers of parameters, without those that have none. groups: the new numbers by group."""
    values = {numbers[old]: value for old, value in state["state"].items() if old in numbers}
    param_groups = [
        {**group, "params": list(params)} for group, params in zip(state["param_groups"], groups, strict=True)
    ]
    return {**state, "state": dict(sorted(values.items())), "param_groups": param_groups}
