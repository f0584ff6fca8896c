"""Activation checkpointing: modules recompute their activations in the backward pass, to fit a memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from hasten.nets.recompute.profile import Profile, choose, occupied, profile_network
from hasten.nets.surgery.reclass import ClassSwap, remove, swap_class

if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object

_DRAWS = "_recompute_draws"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeReport:
    """The recomputed modules and the predicted effect. Bytes are of activations, without weights."""

    modules: tuple[str, ...]
    """Names of the modules that are recomputed."""
    budget: int
    before: int
    """Peak bytes of a step without recomputation."""
    predicted: int
    """Peak bytes of a step with recomputation; the lowest possible if `fits` is false."""
    kept: int
    """Bytes between the forward and the backward pass."""
    left_out: dict[str, str]
    """Modules that cannot be recomputed, and why."""

    @property
    def fits(self) -> bool:
        return self.predicted <= self.budget

    def __str__(self) -> str:
        budget, before, predicted = (f"{size / 2**20:.1f} MiB" for size in (self.budget, self.before, self.predicted))
        if not self.modules and self.fits:
            return f"nothing is recomputed: a step holds {before} of activations, within the budget of {budget}"
        text = f"{len(self.modules)} modules are recomputed: a step holds {predicted} of activations, not {before}"
        return text if self.fits else f"{text}; no choice fits the budget of {budget}"


def recompute(
    network: nn.Module,
    probe: Tensor | tuple[Any, ...],
    budget_bytes: int,
    *,
    batch_size: int | None = None,
    profile: Profile | None = None,
) -> RecomputeReport:
    """Choose modules to recompute so that a step's activations fit `budget_bytes`; in place.

    probe: the network's input as in training, (B, ...), or a tuple of its arguments, on the network's device; it is run
    once, under the autocast that the caller is in. batch_size: the batch that is trained with, where the probe
    has a smaller one; activations grow in proportion. profile: what `profile_network` found for the probe, to save
    running it. A budget that cannot be met is met as nearly as possible, and the report says so. The choice of an
    earlier call is undone first. Call it before `torch.compile`, and after the network was moved, laid out and operated
    on. Raises ValueError for a compiled network and for a budget that is not positive.
    """
    if hasattr(network, "_orig_mod"):
        raise ValueError("recompute: the network is compiled; give the module itself, and compile it afterwards")
    if budget_bytes <= 0:
        raise ValueError(f"budget_bytes={budget_bytes}: give the bytes of activations that a step may hold, 1 or more")
    undo(network)
    arguments = probe if isinstance(probe, tuple) else (probe,)
    profiled = profile if profile is not None else profile_network(network, *arguments)
    if batch_size is not None:
        probed = arguments[0].shape[0]
        profiled = replace(profiled, sizes=tuple(size * batch_size // probed for size in profiled.sizes))
    blocks, predicted = choose(profiled, budget_bytes)
    recompute_modules(network, [block.name for block in blocks], draws={block.name for block in blocks if block.draws})
    return RecomputeReport(
        modules=tuple(block.name for block in blocks),
        budget=budget_bytes,
        before=occupied(profiled, ()).peak,
        predicted=predicted.peak,
        kept=predicted.kept,
        left_out=profiled.left_out,
    )


def recompute_modules(network: nn.Module, names: Iterable[str], *, draws: Iterable[str] = ()) -> None:
    """Recompute the modules of these names, as a `RecomputeReport` has them.

    draws: modules that draw random numbers other than by torch's dropout modules, which are detected.

    Raises ValueError for a name that the network does not have.
    """
    modules, drawing = dict(network.named_modules()), set(draws)
    for name in names:
        if name not in modules:
            raise ValueError(f"{name}: the network has no module of this name; see dict(network.named_modules())")
        turn_on(modules[name], draws=name in drawing)


def undo(network: nn.Module) -> int:
    """Undo all recomputation. Returns the number of modules that were recomputed."""
    recomputed = [module for module in network.modules() if isinstance(module, Recomputed)]
    for module in recomputed:
        turn_off(module)
    return len(recomputed)


class Recomputed(ClassSwap, _Module):
    """Mixin that is put in front of a module's class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().forward
        if not (self.training and torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        call = partial(plain, **kwargs) if kwargs else plain
        if torch.compiler.is_compiling():
            # The compiler ensures that buffers are written once.
            return checkpoint(call, *args, use_reentrant=False)
        return checkpoint(
            call,
            *args,
            use_reentrant=False,
            preserve_rng_state=_draws(self),
            context_fn=lambda: (nullcontext(), _PreservedStatistics(self)),
        )


def turn_on(module: nn.Module, *, draws: bool) -> None:
    """Recompute this module from now on. draws: whether its forward pass takes random numbers other than by dropout."""
    if swap_class(module, Recomputed) and draws:
        setattr(module, _DRAWS, True)


def turn_off(module: nn.Module) -> None:
    """Remove this mixin from the module's class; others stay."""
    remove(module, Recomputed)
    module.__dict__.pop(_DRAWS, None)


def _draws(module: nn.Module) -> bool:
    """Whether the second pass must restore the random state; reading it would break a CUDA-graph capture."""
    return hasattr(module, _DRAWS) or any(
        isinstance(part, _DropoutNd) and part.training and part.p > 0 for part in module.modules()
    )


class _PreservedStatistics:
    """Context in which norms of the module update copies of their running statistics.

    In training these are written and not read, so that the copies change no output; the operation still receives
    them, as the second pass must save the same tensors as the first one.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: list[tuple[nn.Module, dict[str, Tensor | None]]] = []

    def __enter__(self) -> None:
        for part in self._module.modules():
            if isinstance(part, _NormBase) and part.training and part.running_mean is not None:
                self._kept.append((part, dict(part._buffers)))
                for name, buffer in part._buffers.items():
                    part._buffers[name] = buffer.clone() if buffer is not None else None

    def __exit__(self, *_: object) -> None:
        while self._kept:
            part, buffers = self._kept.pop()
            part._buffers.update(buffers)
