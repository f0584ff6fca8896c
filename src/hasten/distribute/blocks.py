"""Selection of the modules whose sharded weights are gathered and freed together (the units of FSDP)."""

from __future__ import annotations

from torch import Tensor, nn

from hasten.nets.recompute.module import Recomputed

SHARE = 1 / 8
"""Share of all weights that a block needs to be gathered by itself; smaller blocks wait more than they save."""


def sharded_blocks(network: nn.Module, share: float = SHARE) -> list[nn.Module]:
    """Blocks with at least `share` of the weights outside of the blocks within them, inner ones first; at last the
    network.

    A block is a module with modules in it: the weight of a single layer may be read by the block that it is in. None
    is taken from within a module that is recomputed, which would gather it twice in a backward pass. Where a parameter
    has two modules, the network is one block. None holds weights that a module before it left over: nnU-Net's decoder
    has the encoder as a part, whose weights are read first.
    """
    if _has_tied_weights(network):
        return [network]
    min_bytes = share * sum(map(_bytes, network.parameters()))
    blocks: list[nn.Module] = []
    visited: set[nn.Module] = set()
    unassigned: set[nn.Module] = set()  # visited, and in no block yet

    def direct_bytes(module: nn.Module) -> int:
        """Bytes of the module's direct weights, counted once: a module may have several names."""
        if module in visited:
            return 0
        visited.add(module)
        unassigned.add(module)
        return sum(map(_bytes, module.parameters(recurse=False)))

    def visit(module: nn.Module) -> int:
        """Bytes of the module's weights that no block has."""
        outside = set(unassigned)
        if isinstance(module, Recomputed):
            remaining = sum(map(direct_bytes, module.modules()))
        else:
            remaining = direct_bytes(module) + sum(map(visit, module.children()))
        if module is network or remaining < min_bytes or not _is_block(module) or outside & _with_weights(module):
            return remaining
        blocks.append(module)
        unassigned.difference_update(module.modules())
        return 0

    visit(network)
    return [*blocks, network]


def _is_block(module: nn.Module) -> bool:
    """Whether the module has submodules and defines `forward`, without which no hook would gather its weights."""
    return any(True for _ in module.children()) and type(module).forward is not nn.Module.forward


def _with_weights(module: nn.Module) -> set[nn.Module]:
    return {part for part in module.modules() if any(True for _ in part.parameters(recurse=False))}


def _has_tied_weights(network: nn.Module) -> bool:
    owners: set[int] = set()
    for module in network.modules():
        for weight in module.parameters(recurse=False):
            if id(weight) in owners:
                return True
            owners.add(id(weight))
    return False


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
