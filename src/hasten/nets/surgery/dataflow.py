"""Traces the data flow between modules in one forward pass: of any network, whatever its control flow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hasten.nets.random_state import random_state_kept

Probe = Tensor | tuple[Any, ...] | dict[str, Any]
"""A network's input: one tensor, or all its arguments by position or by name."""

Leave = Callable[[Any], object]
"""Called at the end of a module's call, with its output."""
Enter = Callable[[str, tuple[Any, ...], dict[str, Any]], Leave]
"""Called at the beginning of a module's call, with its name and arguments; returns what is called at its end."""

_PROPERTIES = "shape device dtype ndim layout requires_grad grad_fn is_leaf is_cuda is_meta is_sparse is_nested names"
_METHODS = "size dim stride numel nelement ndimension is_contiguous is_floating_point is_complex get_device __len__"
_QUIET = frozenset(
    [getattr(Tensor, name).__get__ for name in _PROPERTIES.split() if hasattr(Tensor, name)]
    + [getattr(Tensor, name) for name in _METHODS.split()]
)
"""Functions that read a tensor's metadata and not its values."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module."""

    module: str
    input: Any
    """The first argument."""
    output: Any
    """The output."""


@dataclass(frozen=True, slots=True)
class Use:
    """One function call with a tensor as an argument."""

    function: Any
    inside: tuple[int, ...]
    """Numbers of the enclosing module calls, the outermost first."""
    returned_it: bool
    """Whether it returned the same tensor, as a dropout of 0 does."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The uses of all tensors of one forward pass. The tensors are kept alive, so that ids are unique."""

    network: nn.Module
    """The copy that was run, in training mode."""
    calls: dict[int, Call]
    uses: dict[int, list[Use]]
    """Uses of each tensor, by its id."""
    outputs: frozenset[int]
    """Ids of the tensors that the network returned."""
    tensors: list[Tensor]
    """All tensors of the pass, of any shape."""

    def calls_of(self, module: str) -> list[Call]:
        return [call for call in self.calls.values() if call.module == module]

    def consumers(self, tensor: Tensor) -> list[Call] | None:
        """The innermost module calls that took the tensor as their first argument and that alone used it.

        None if anything else did, or if it left the network. The tensor, of any shape, is known by its id.
        """
        if id(tensor) in self.outputs:
            return None
        consumers: dict[int, Call] = {}
        for use in self.uses_of(tensor):
            number = self._taker(use, tensor)
            if number is None:
                return None
            consumers[number] = self.calls[number]
        return list(consumers.values())

    def uses_of(self, tensor: Tensor) -> list[Use]:
        """Uses of a tensor of any shape in call order, without dropouts that do nothing."""
        uses = self.uses.get(id(tensor), [])
        return [use for use in uses if not (use.returned_it and "dropout" in use.function.__name__)]

    def first_consumer(self, tensor: Tensor) -> Call | None:
        """The innermost module call that took the tensor, of any shape, first, whoever uses it later."""
        uses = self.uses_of(tensor)
        number = self._taker(uses[0], tensor) if uses else None
        return self.calls[number] if number is not None else None

    def _taker(self, use: Use, tensor: Tensor) -> int | None:
        return next((number for number in reversed(use.inside) if self.calls[number].input is tensor), None)


@dataclass(slots=True)
class _Watch(TorchFunctionMode):
    open: list[int] = field(default_factory=list)
    uses: dict[int, list[Use]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in _QUIET:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.tensors.append(leaf)
                    self.uses.setdefault(id(leaf), []).append(Use(func, tuple(self.open), result is leaf))
        return result


def see_flow(network: nn.Module, probe: Probe) -> Flow:
    """Run a copy of `network` once on `probe`, in training mode and without gradients.

    The network, its running statistics and the random state are left as they are; on a tensor of the meta device,
    nothing is computed. Raises ValueError if it can't be copied or does not run on the probe.
    """
    network_copy = copied(network)
    if isinstance(probe, Tensor) and probe.is_meta:
        network_copy.to(probe.device)
    watch = _Watch()
    calls: dict[int, Call] = {}

    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Leave:
        number = len(calls)
        image = args[0] if args else next(iter(kwargs.values()), None)
        calls[number] = Call(name, image, None)
        watch.open.append(number)

        def leave(output: Any) -> None:
            watch.open.pop()
            calls[number] = replace(calls[number], output=output)
            watch.tensors.extend(leaf for leaf in tree_leaves((image, output)) if isinstance(leaf, Tensor))

        return leave

    with hooked(dict(network_copy.named_modules()), enter), watch:
        result = _run(network_copy, probe)
    leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    return Flow(network_copy, calls, watch.uses, frozenset(map(id, leaves)), [*watch.tensors, *leaves])


@contextmanager
def hooked(modules: Mapping[str, nn.Module], enter: Enter, *, prepend: bool = False) -> Iterator[None]:
    """Call `enter` before each call of these modules, and the function that it returned after it. Calls may be nested.

    prepend: at the end of a call, come before other hooks.
    """
    pending: list[Leave] = []

    def before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pending.append(enter(name, args, kwargs))

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        pending.pop()(output)

    handles = []
    for name, module in modules.items():
        handles += [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: before(name, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(after, prepend=prepend),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def copied(network: nn.Module) -> nn.Module:
    """A copy in training mode. Raises ValueError if there can be none."""
    try:
        return copy.deepcopy(network).train()
    except Exception as error:
        raise ValueError(
            f"network: {type(network).__name__} can't be copied to try it out ({error}); "
            "operate on it before its first training step"
        ) from error


def _run(network: nn.Module, probe: Probe) -> Any:
    """The output on the probe, without gradients and leaving the random state. Raises ValueError if it fails."""
    devices = {torch.device("cpu"), *(value.device for value in network.parameters())}
    with ExitStack() as stack, torch.no_grad():
        for device in devices:
            stack.enter_context(random_state_kept(device))
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` would seed GPUs, too
        try:
            if isinstance(probe, dict):
                return network(**probe)
            return network(*probe) if isinstance(probe, tuple) else network(probe)
        except Exception as error:
            raise ValueError(
                f"probe: {type(network).__name__} does not run on it in training mode ({error}); give the input of a "
                "training step, of its shape and on the network's device"
            ) from error
