"""Checkpoints of a pipeline: the states of the stages, merged into that of a single process and split again.

An optimizer's state knows parameters by their number in its groups. A stage's optimizer has the groups of a single
process's with fewer parameters in them, so that the same name has another number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, distributed
from torch.utils._pytree import tree_map_only

from hasten.distribute.part_optimizer import flat_state, nested_state, number_ranges, renumbered
from hasten.distribute.world import World

Layout = Sequence[Sequence[str]]
"""Names of the parameters in each group of an optimizer."""


def merge_stages(
    state: dict[str, Any], world: World, whole: Layout, local: Layout, names: Sequence[str]
) -> dict[str, Any]:
    """The state of a single process, complete on rank 0. All ranks call it.

    whole, local: the optimizer's parameters in a single process and here. names: of the network's state, in order.
    """
    local_state = {
        "network": state["network"],
        "average": state["average"],
        "optimizer": _renumbered(state["optimizer"], local, whole),
    }
    states: list[Any] | None = [None] * world.size if world.first else None
    distributed.gather_object(tree_map_only(Tensor, lambda value: value.detach().cpu(), local_state), states, dst=0)
    if states is None:
        return state
    # In the order of a single process's, so that the same state makes the same file.
    networks = {}
    for kind in ("network", "average"):
        if state[kind] is not None:
            merged = {name: value for one in states for name, value in one[kind].items()}
            networks[kind] = {name: merged[name] for name in names}
    values = {place: value for one in states for place, value in flat_state(one["optimizer"]).items()}
    return {**state, **networks, "optimizer": nested_state(states[0]["optimizer"], values)}


def split_stages(
    state: dict[str, Any], whole: Layout, local: Layout, names: Sequence[str], local_names: Collection[str]
) -> dict[str, Any]:
    """This stage's part of a single process's state. The state of another network or optimizer is returned as it is.

    Restoring then refuses it. local_names: those of `names` that this stage holds.
    """
    optimizer = state["optimizer"]
    fits = [len(group["params"]) for group in optimizer["param_groups"]] == [len(group) for group in whole]
    if not fits or set(state["network"]) != set(names):
        return state
    networks = {
        kind: {name: value for name, value in state[kind].items() if name in local_names}
        for kind in ("network", "average")
        if state[kind]
    }
    return {**state, **networks, "optimizer": _renumbered(optimizer, whole, local)}


def _renumbered(optimizer: dict[str, Any], before: Layout, after: Layout) -> dict[str, Any]:
    """An optimizer's state in another layout, without the parameters that it lacks."""
    numbers = {name: number for number, name in enumerate(chain.from_iterable(after))}
    old_to_new = {old: numbers[name] for old, name in enumerate(chain.from_iterable(before)) if name in numbers}
    return renumbered(optimizer, old_to_new, number_ranges([len(group) for group in after]))
