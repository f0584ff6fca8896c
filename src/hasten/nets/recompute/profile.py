"""Profiles a network on a probe, and chooses what to recompute by the bytes that modules save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from hasten.nets.random_state import random_state_kept, random_states
from hasten.nets.surgery.dataflow import Leave, copied, hooked
from hasten.nets.surgery.deferred import Deferred

_SHARE = 1e-3
"""A block that saves less than this share of all activations is ignored."""
_SIZES = 8
"""Sizes of blocks that are tried: at most all activations, a half of them, a quarter, ..."""


class ModuleCall(NamedTuple):
    """One call of a module in the probe."""

    begin: int
    """Number of tensors saved before it."""
    end: int
    inputs: tuple[int, ...]
    """Storages of its arguments, which are kept where the module is recomputed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A module that can be recomputed as a whole."""

    name: str
    call: ModuleCall
    draws: bool = False
    """Whether it takes random numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A forward pass as a sequence of tensors saved for the backward pass."""

    sizes: tuple[int, ...]
    """Bytes of each storage; 0 if the network or the caller holds it anyway."""
    saves: tuple[int, ...]
    """The storage of each tensor that was saved for the backward pass, in order."""
    blocks: tuple[Block, ...]
    left_out: dict[str, str]
    """Why a module that was called cannot be recomputed."""


def profile_network(network: nn.Module, *probe: Any) -> Profile:
    """Run a copy of `network` once in training mode, under the caller's autocast, and record what it saves.

    The network and the random state are left as they are. The pass needs the memory of a plain forward pass of this
    probe. Raises ValueError if the network can't be copied.
    """
    device = next((tensor.device for tensor in _tensors(probe)), torch.device("cpu"))
    network = copied(network)
    with random_state_kept(device), torch.enable_grad():
        watch = _record(network, probe, device)
    blocks = (
        Block(name=name, call=calls[0], draws=name in watch.draws)
        for name, calls in watch.calls.items()
        if name and name not in watch.left_out
    )
    return Profile(
        sizes=tuple(watch.sizes),
        saves=tuple(watch.saves),
        blocks=tuple(blocks),
        left_out=watch.left_out,
    )


class _Watch:
    """Recorder of the saves and calls of one forward pass."""

    def __init__(self, existing: list[Tensor]) -> None:
        self.sizes: list[int] = []
        self.saves: list[int] = []
        self.calls: dict[str, list[ModuleCall]] = {}
        self.left_out: dict[str, str] = {}
        self.draws: set[str] = set()
        self._numbers: dict[int, int] = {}
        # Storages are distinguished by address, so that all of them must stay alive until the pass is over.
        self._alive: list[Tensor] = []
        self._versions: dict[str, list[tuple[Tensor, int]]] = {}
        for tensor in existing:
            self.sizes[self.number(tensor)] = 0

    def number(self, tensor: Tensor) -> int:
        """The position of the tensor's storage in `sizes`."""
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
        else:
            key, size = id(tensor), tensor.numel() * tensor.element_size()
        if key not in self._numbers:
            self._numbers[key] = len(self.sizes)
            self.sizes.append(size)
            self._alive.append(tensor.detach() if tensor.layout is torch.strided else tensor)
        return self._numbers[key]

    def save(self, tensor: Tensor) -> Tensor:
        self.saves.append(self.number(tensor))
        # Not the tensor itself: an output that its own graph holds would never be freed.
        return tensor.detach()

    def enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leave:
        """Record the beginning of a call; returns a function that records its end."""
        begin = len(self.saves)
        inputs = list(_tensors((args, kwargs)))
        if not _plain((*args, *kwargs.values())):
            self.left_out[name] = "takes a list or an object, which it could change"
        versions = [(tensor.detach(), tensor._version) for tensor in inputs]
        self._versions.setdefault(name, []).extend(versions)
        numbers = tuple(dict.fromkeys(map(self.number, inputs)))

        def leave(output: Any) -> None:
            if any(isinstance(leaf, Deferred) for leaf in tree_leaves((args, kwargs, output))):
                self.left_out[name] = "takes or gives a norm's output that is not computed yet"
            self.calls.setdefault(name, []).append(ModuleCall(begin, len(self.saves), numbers))
            if any(tensor._version != version for tensor, version in versions):
                self.left_out[name] = "changes its input in place"

        return leave

    def finish(self) -> None:
        for name, versions in self._versions.items():
            if name not in self.left_out and any(tensor._version != version for tensor, version in versions):
                self.left_out[name] = "its input is changed in place later on"
        self._versions.clear()
        self._alive.clear()


def _record(network: nn.Module, probe: tuple[Any, ...], device: torch.device) -> _Watch:
    existing = [*network.parameters(), *network.buffers(), *_tensors(probe)]
    watch = _Watch(existing)
    modules = dict(network.named_modules())
    for name, module in modules.items():
        reason = _why_not(module)
        if reason:
            watch.left_out[name] = reason

    def entered(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leave:
        state, leave = random_states(device), watch.enter(name, args, kwargs)

        def on_exit(output: Any) -> None:
            leave(output)
            if any(not torch.equal(one, other) for one, other in zip(state, random_states(device), strict=True)):
                watch.draws.add(name)

        return on_exit

    before = {name: (_held(module), _versions(module)) for name, module in modules.items()}
    with hooked(modules, entered, prepend=True), saved_tensors_hooks(watch.save, lambda tensor: tensor):
        output = network(*probe)
    changed = [name for name, module in modules.items() if _versions(module) != before[name][1]]
    for name in modules:
        culprit = next((inner for inner in changed if not name or f"{inner}.".startswith(f"{name}.")), None)
        if culprit is not None:
            prefix = "" if culprit == name else f"{culprit} within it "
            watch.left_out[name] = f"{prefix}keeps something from its forward pass"
    for name, calls in watch.calls.items():
        if len(calls) > 1:
            watch.left_out.setdefault(name, "is called more than once")
    watch.finish()
    del output
    return watch


def _why_not(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript"
    if "forward" in vars(module):
        return "has its own forward instead of its class's"
    if any(part is not module and (part._forward_hooks or part._forward_pre_hooks) for part in module.modules()):
        return "has hooks within, which would be called twice"
    return None


def _held(module: nn.Module) -> dict[str, Any]:
    """Everything in the module itself that a forward pass could change."""
    buffers = {} if isinstance(module, _NormBase) else module._buffers
    return {**vars(module), **module._parameters, **buffers}


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity of each, with the length of a list or dict, and how often a tensor was written to."""
    return {
        name: (id(value), len(value) if isinstance(value, list | dict) else getattr(value, "_version", 0))
        for name, value in _held(module).items()
    }


def _tensors(tree: Any) -> Iterator[Tensor]:
    # Any access to a deferred norm output would compute it without its activation.
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and not isinstance(leaf, Deferred))


def _plain(values: tuple[Any, ...]) -> bool:
    """Whether all values are tensors, numbers and strings, or tuples of them: nothing that the callee could change."""
    return all(
        _plain(value) if type(value) in (tuple, torch.Size) else isinstance(value, Tensor | int | float | str | None)
        for value in values
    )


class Occupied(NamedTuple):
    """Bytes of activations."""

    kept: int
    """Bytes kept between the forward and the backward pass."""
    peak: int
    """Peak: the bytes kept by then plus those of a recomputed block during its backward pass."""


def occupied(profile: Profile, blocks: Iterable[Block]) -> Occupied:
    """Activation memory of a step that recomputes these blocks, none within another.

    A backward pass goes through the saves from last to first and frees them, so that during a block only the saves
    before its end are alive. A block keeps its inputs, and its recomputation saves what is not alive already.
    """
    alive: set[int] = set()
    kept_bytes = peak = place = 0

    def keep(storages: Iterable[int]) -> int:
        new = set(storages) - alive
        alive.update(new)
        return sum(profile.sizes[storage] for storage in new)

    for call in sorted(block.call for block in blocks):
        kept_bytes += keep(profile.saves[place : call.begin]) + keep(call.inputs)
        inner = set(profile.saves[call.begin : call.end]) - alive
        peak = max(peak, kept_bytes + sum(profile.sizes[storage] for storage in inner))
        place = call.end
    kept_bytes += keep(profile.saves[place:])
    return Occupied(kept_bytes, max(peak, kept_bytes))


def choose(profile: Profile, budget: int) -> tuple[tuple[Block, ...], Occupied]:
    """The blocks to recompute so that a step's activations fit `budget` bytes, and the memory used.

    At each of some sizes of blocks, those that save the most bytes are added until the step fits, and those left out
    again that it fits without. Of these choices the one that recomputes the fewest bytes wins; if none fits, the one
    with the smallest peak.
    """
    nothing = occupied(profile, ())
    if nothing.peak <= budget:
        return (), nothing
    saved = _bytes_by_block(profile)
    options: list[list[Block]] = [[]]
    for halvings in range(_SIZES):
        blocks = [block for block in saved if saved[block] <= nothing.kept / 2**halvings]
        options.append(_first_that_fit(profile, budget, sorted(blocks, key=lambda each: -saved[each])))

    def price(blocks: list[Block]) -> tuple[int, int]:
        return max(budget, occupied(profile, blocks).peak), sum(saved[block] for block in blocks)

    best = min(options, key=price)
    return tuple(sorted(best, key=lambda block: block.call)), occupied(profile, best)


def _first_that_fit(profile: Profile, budget: int, blocks: list[Block]) -> list[Block]:
    """Blocks that lower the peak, in their order, until the step fits, without those that it fits without.

    One takes the place of those that lie in it or around it.
    """
    chosen: list[Block] = []
    held = occupied(profile, ())
    for block in blocks:
        others = [*(each for each in chosen if _apart(block.call, each.call)), block]
        then = occupied(profile, others)
        if (then.peak, then.kept) < (held.peak, held.kept):
            chosen, held = others, then
        if held.peak <= budget:
            break
    least = max(budget, held.peak)
    for block in list(chosen):
        others = [each for each in chosen if each is not block]
        chosen = others if occupied(profile, others).peak <= least else chosen
    return chosen


def _apart(one: ModuleCall, other: ModuleCall) -> bool:
    return one.end <= other.begin or other.end <= one.begin


def _bytes_by_block(profile: Profile) -> dict[Block, int]:
    """Bytes that a block saves besides its inputs, of the blocks that save more than a little."""
    total = sum(profile.sizes[storage] for storage in set(profile.saves))
    blocks: dict[ModuleCall, Block] = {}
    for block in profile.blocks:
        # A wrapper and the module that it wraps, whose call ends first, are one choice.
        blocks.setdefault(block.call, block)
    saved = {}
    for call, block in blocks.items():
        within = set(profile.saves[call.begin : call.end]) - set(call.inputs)
        saved[block] = sum(profile.sizes[storage] for storage in within)
    return {block: size for block, size in saved.items() if size > _SHARE * total}
