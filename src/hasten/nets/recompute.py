"""Activation checkpointing: modules recompute their activations in the backward pass, to fit a memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from hasten.nets.random_state import random_state_kept, random_states
from hasten.nets.surgery.dataflow import Leave, copied, hooked
from hasten.nets.surgery.deferred import Deferred
from hasten.nets.surgery.reclass import ClassSwap, remove, swap_class

_DRAWS = "_recompute_draws"
_SIZES = 8
"""Sizes of blocks that are tried: at most all activations, a half of them, a quarter, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeReport:
    """The recomputed modules and the predicted effect. Bytes are of activations, without weights."""

    modules: tuple[str, ...]
    """Names of the modules that are recomputed."""
    draws: bool
    """Whether the network takes random numbers, whose state recomputed modules restore."""
    budget: int
    before: int
    """Bytes that a step without recomputation keeps."""
    predicted: int
    """Peak bytes of a step with recomputation; the lowest that was found if `fits` is false."""

    @property
    def fits(self) -> bool:
        return self.predicted <= self.budget

    def __str__(self) -> str:
        budget, before, predicted = (f"{size / 2**20:.1f} MiB" for size in (self.budget, self.before, self.predicted))
        text = f"{len(self.modules)} modules are recomputed: a step holds {predicted} of activations, not {before}"
        return text if self.fits else f"{text}; no choice fits the budget of {budget}"


def recompute(
    network: nn.Module, probe: Tensor, budget_bytes: int, *, batch_size: int | None = None
) -> RecomputeReport:
    """Choose modules to recompute so that a step's activations fit `budget_bytes`; in place.

    probe: the network's input as in training, (B, ...), on the network's device. A copy of the network is run on it
    once, under the autocast that the caller is in. batch_size: the batch that is trained with, where the probe has a
    smaller one; activations grow in proportion. A budget that cannot be met is met as nearly as possible, and the
    report says so. The choice of an earlier call is undone first. Call it before `torch.compile`, and after the network
    was moved, laid out and operated on. Raises ValueError for a compiled network and for a budget that is not positive.
    """
    if hasattr(network, "_orig_mod"):
        raise ValueError("recompute: the network is compiled; give the module itself, and compile it afterwards")
    if budget_bytes <= 0:
        raise ValueError(f"budget_bytes={budget_bytes}: give the bytes of activations that a step may hold, 1 or more")
    undo(network)
    saves = _saves_of(copied(network), probe)
    times = (batch_size or len(probe)) / len(probe)
    before = int(times * saves.bytes_of(set(saves.order)))
    if before <= budget_bytes:
        return RecomputeReport(modules=(), draws=saves.draws, budget=budget_bytes, before=before, predicted=before)
    options = [_option(saves, budget_bytes / times, halvings) for halvings in range(_SIZES)]
    best = min(options, key=lambda option: (max(budget_bytes / times, option.peak), option.again))
    recompute_modules(network, best.modules, draws=saves.draws)
    return RecomputeReport(
        modules=best.modules, draws=saves.draws, budget=budget_bytes, before=before, predicted=int(times * best.peak)
    )


def recompute_modules(network: nn.Module, names: Iterable[str], *, draws: bool = True) -> None:
    """Recompute the modules of these names, as a `RecomputeReport` has them.

    draws: whether a second pass restores the random state of the first; reading it would break a CUDA-graph capture.
    Raises AttributeError for a name that the network does not have.
    """
    for module in [network.get_submodule(name) for name in names]:
        swap_class(module, Recomputed)
        setattr(module, _DRAWS, draws)


def undo(network: nn.Module) -> None:
    """Undo all recomputation."""
    for module in network.modules():
        if isinstance(module, Recomputed):
            remove(module, Recomputed)
            delattr(module, _DRAWS)


class Recomputed(ClassSwap):
    """Mixin that is put in front of a module's class."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = super().forward  # type: ignore[misc]
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
            preserve_rng_state=getattr(self, _DRAWS),
            context_fn=lambda: (nullcontext(), _PreservedStatistics(self)),
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


class _Saves(NamedTuple):
    """The tensors that a forward pass saves for the backward pass, by their storages."""

    sizes: dict[int, int]
    """Bytes of each storage; 0 if the network or the caller holds it anyway."""
    order: list[int]
    """The storage of each tensor that was saved, in order."""
    blocks: dict[str, tuple[int, int, set[int]]]
    """Modules that can be recomputed: numbers of saves before and after their call, storages of their arguments."""
    draws: bool
    """Whether the pass took random numbers."""

    def bytes_of(self, storages: set[int]) -> int:
        return sum(self.sizes[storage] for storage in storages)

    def freed(self, name: str) -> int:
        """Bytes that nothing but this block saves."""
        begin, end, inputs = self.blocks[name]
        outside = {*self.order[:begin], *self.order[end:], *inputs}
        return self.bytes_of(set(self.order[begin:end]) - outside)


class _Option(NamedTuple):
    """Some modules to recompute."""

    modules: tuple[str, ...]
    peak: float
    """Bytes that are kept, and those of the largest block during its backward pass."""
    again: int
    """Bytes that are computed twice."""


def _option(saves: _Saves, budget: float, halvings: int) -> _Option:
    """Outermost blocks that free at most 1 / 2 ** `halvings` of all bytes, the largest first, until the step fits."""
    whole = saves.bytes_of(set(saves.order))
    blocks: dict[str, int] = {}
    for name in saves.blocks:  # in the order of `named_modules`: a module before those in it
        size = saves.freed(name)
        if 0 < size <= whole / 2**halvings and not any(name.startswith(f"{outer}.") for outer in blocks):
            blocks[name] = size
    kept, largest = whole, 0
    chosen: list[str] = []
    for name, size in sorted(blocks.items(), key=lambda item: -item[1]):
        if kept + largest <= budget:
            break
        chosen.append(name)
        kept, largest = kept - size, max(largest, size)
    return _Option(tuple(name for name in blocks if name in chosen), kept + largest, whole - kept)


def _saves_of(network: nn.Module, probe: Tensor) -> _Saves:
    """Run the network, a copy in training mode, and record what it saves."""
    sizes: dict[int, int] = {}
    order: list[int] = []
    alive: list[Tensor] = []  # storages are known by address, so that all must live until the pass is over
    calls: dict[str, list[tuple[int, int, set[int]]]] = {}
    unfit: set[str] = set()
    versions: list[tuple[str, Tensor, int]] = []

    def number(tensor: Tensor, *, held: bool = False) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in sizes:
            sizes[storage._cdata] = 0 if held else storage.nbytes()
            alive.append(tensor.detach())
        return storage._cdata

    def save(tensor: Tensor) -> Tensor:
        order.append(number(tensor))
        return tensor.detach()  # not itself: an output that its own graph holds would never be freed

    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leave:
        begin = len(order)
        # Any other access to a deferred norm output would compute it without its activation.
        plain = not kwargs and all(isinstance(each, Tensor) and not isinstance(each, Deferred) for each in args)
        if not plain:
            unfit.add(name)
        inputs = set(map(number, args)) if plain else set[int]()
        # What is changed in place, here or later, can't be computed from again.
        versions.extend((name, each.detach(), each._version) for each in args if plain)

        def leave(output: Any) -> None:
            calls.setdefault(name, []).append((begin, len(order), inputs))
            if any(isinstance(leaf, Deferred) for leaf in tree_leaves(output)):
                unfit.add(name)

        return leave

    for tensor in (*network.parameters(), *network.buffers(), probe):
        number(tensor, held=True)
    modules = dict(network.named_modules())
    held = {name: _states(module) for name, module in modules.items()}
    with random_state_kept(probe.device), torch.enable_grad():
        states = random_states(probe.device)
        with hooked(modules, enter, prepend=True), saved_tensors_hooks(save, lambda tensor: tensor):
            network(probe)
        later = random_states(probe.device)
    unfit |= {name for name, tensor, version in versions if tensor._version != version}
    unfit |= {name for name, module in modules.items() if _states(module) != held[name]}
    unfit |= {name for name, module in modules.items() if isinstance(module, torch.jit.ScriptModule)}
    unfit |= {name for name, module in modules.items() if "forward" in vars(module)}
    fit = (name for name in modules if name and name not in unfit and len(calls.get(name, ())) == 1)
    draws = any(not torch.equal(one, other) for one, other in zip(states, later, strict=True))
    return _Saves(sizes, order, {name: calls[name][0] for name in fit}, draws)


def _states(module: nn.Module) -> list[int]:
    """Identities of all that the modules in it hold, and how often a buffer was written to.

    The statistics of norms don't count: `_PreservedStatistics` lets them be written once.
    """
    held = [id(value) for part in module.modules() for value in vars(part).values()]
    parts = (part for part in module.modules() if not isinstance(part, _NormBase))
    return held + [value._version for part in parts for value in part._buffers.values() if value is not None]
