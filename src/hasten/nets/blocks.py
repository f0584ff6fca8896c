"""Compiling the blocks that a network repeats, one by one: smaller graphs than the whole network's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def compile_blocks(network: nn.Module) -> list[str]:
    """Compile every repeated block in place, lazily, and return their names; an empty list if nothing repeats.

    A block is an outermost module that is not a torch container, holds weights in submodules, and whose class occurs
    twice or more in the network and never inside itself. Names, parameters and copies of the network stay
    as they are (a copy is not compiled).
    """
    blocks = list(repeated_blocks(network))
    # One class runs at several sizes, and torch stops recompiling after eight by default.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 8 + 2 * len(blocks))
    for _, block in blocks:
        block.compile(dynamic=False)
    return [name for name, _ in blocks]


def repeated_blocks(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules, in the order of the network."""
    candidates = [(name, module) for name, module in network.named_modules() if _is_block(module)]
    count = Counter(type(module) for _, module in candidates)
    nested = {type(module) for _, module in candidates if any(type(inner) is type(module) for inner in _inner(module))}
    repeated = [(name, module) for name, module in candidates if count[type(module)] > 1 and type(module) not in nested]
    inside = {id(inner) for _, module in repeated for inner in _inner(module)}
    return ((name, module) for name, module in repeated if id(module) not in inside)


def _inner(module: nn.Module) -> Iterator[nn.Module]:
    modules = module.modules()
    next(modules)
    return modules


def _is_block(module: nn.Module) -> bool:
    return type(module) not in _CONTAINERS and any(list(inner.parameters(False)) for inner in _inner(module))
