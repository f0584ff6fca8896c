"""Freezes parameters by name, and the running statistics of batch norms."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hasten.config.patterns import first_few, fitting
from hasten.nets.surgery.reclass import ClassSwap, swap_class


class _Evaluated(ClassSwap):
    """A norm that uses its running statistics, and does not update them, in training too."""

    def train(self: Any, mode: bool = True) -> Any:
        return super().train(False)  # type: ignore[misc]


def freeze_parameters(network: nn.Module, patterns: Sequence[str], *, at: str = "patterns") -> tuple[str, ...]:
    """Set requires_grad=False on parameters whose names match an `fnmatch` pattern, in place; returns their names.

    An optimizer neither updates nor decays such a parameter. `at` names the patterns in errors. Raises ValueError
    for a pattern that no parameter's name fits, or where nothing is left to train; the network is then unchanged.
    """
    parameters = dict(network.named_parameters())
    names = {name for pattern in patterns for name in fitting(list(parameters), pattern, at=at)}
    if patterns and not any(weight.requires_grad for name, weight in parameters.items() if name not in names):
        raise ValueError(
            f"{at}: {', '.join(patterns)} leaves nothing to train of {first_few(parameters)}; leave some out"
        )
    for name in names:
        parameters[name].requires_grad_(False)
    return tuple(name for name in parameters if name in names)


def freeze_norms(network: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Keep norms with running statistics in evaluation mode, in place, where their names fit; returns their names.

    Selects norms whose statistics (NAME.running_mean) match a pattern, or all of whose parameters do. Call it after a
    conversion to `SyncBatchNorm`, which replaces modules.
    """
    frozen = []
    for name, module in network.named_modules():
        if getattr(module, "running_mean", None) is None:
            continue
        start = f"{name}." if name else ""
        names = [start + key for key, _ in module.named_parameters(recurse=False)]
        if _fits(f"{start}running_mean", patterns) or (names and all(_fits(key, patterns) for key in names)):
            swap_class(module, _Evaluated)
            module.eval()
            frozen.append(name)
    return tuple(frozen)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
