"""Checkpoints of a pipeline: the states of the stages, merged into that of a single process and split again.

An optimizer's state knows parameters by their number in its groups. A stage's optimizer has the groups of a single
process's with fewer parameters in them, so that the same name has another number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, distributed
from torch.utils._pytree import tree_map

from hasten.distribute.world import World

Layout = Sequence[Sequence[str]]
"""Names of the parameters in each group of an optimizer."""

_BY_NUMBER = ("state", "slow")
"""Entries, at any depth of an optimizer's state, whose keys are numbers of parameters; `slow` is Lookahead's."""


def gathered_state(
    state: dict[str, Any], world: World, whole: Layout, local: Layout, names: Sequence[str]
) -> dict[str, Any]:
    """The state of a single process, complete on rank 0. All ranks call it.

    whole, local: the optimizer's parameters in a single process and here. names: of the network's state, in order.
    """
    optimizer = state["optimizer"]
    named = _renumber(optimizer, dict(enumerate(_flat(local))).__getitem__)
    local_state = {"network": dict(state["network"]), "average": state["average"], "optimizer": named}
    local_state["average"] = dict(local_state["average"]) if local_state["average"] is not None else None
    states: list[Any] | None = [None] * world.size if world.first else None
    distributed.gather_object(tree_map(_on_host, local_state), states, dst=0)
    if states is None:
        return state
    numbers = {name: number for number, name in enumerate(_flat(whole))}
    joined = _merge_states([one["optimizer"] for one in states], numbers)
    groups = [
        {**group, "params": [numbers[name] for name in members]}
        for group, members in zip(optimizer["param_groups"], whole, strict=True)
    ]
    parts = {
        kind: None if local_state[kind] is None else _in_order([one[kind] for one in states], names)
        for kind in ("network", "average")
    }
    # In the order of a single process's, so that the same state makes the same file.
    return {**state, **parts, "optimizer": {name: joined.get(name, groups) for name in optimizer}}


def scattered_state(
    state: dict[str, Any], whole: Layout, local: Layout, names: Sequence[str], local_names: Collection[str]
) -> dict[str, Any]:
    """This stage's part of a single process's state. The state of another network or optimizer is returned as it is.

    Restoring then refuses it. local_names: those of `names` that this stage holds.
    """
    optimizer = state["optimizer"]
    fits = [len(group["params"]) for group in optimizer["param_groups"]] == [len(group) for group in whole]
    if not fits or set(state["network"]) != set(names):
        return state
    by_number = list(_flat(whole))
    numbers = {name: number for number, name in enumerate(_flat(local))}
    part = _renumber(optimizer, lambda number: numbers.get(by_number[number]))
    start = 0
    part["param_groups"] = []
    for group, members in zip(optimizer["param_groups"], local, strict=True):
        part["param_groups"].append({**group, "params": list(range(start, start + len(members)))})
        start += len(members)
    networks = {
        kind: {name: value for name, value in state[kind].items() if name in local_names}
        if state[kind]
        else state[kind]
        for kind in ("network", "average")
    }
    return {**state, **networks, "optimizer": part}


def _flat(layout: Layout) -> list[str]:
    return [name for group in layout for name in group]


def _renumber(optimizer: dict[str, Any], key: Callable[[Any], Any]) -> dict[str, Any]:
    """An optimizer's state without its groups, with `key(number)` for each number; None leaves an entry out."""
    renumbered: dict[str, Any] = {}
    for name, value in optimizer.items():
        if name == "param_groups":
            continue
        if name in _BY_NUMBER:
            value = {key(number): entry for number, entry in value.items() if key(number) is not None}
        elif isinstance(value, dict):
            value = _renumber(value, key)
        renumbered[name] = value
    return renumbered


def _merge_states(parts: Sequence[Any], numbers: dict[str, int]) -> Any:
    """The entries by name of all stages' states, renumbered; all other values are those of the first stage."""
    merged: dict[str, Any] = {}
    for name, value in parts[0].items():
        if name in _BY_NUMBER:
            entries = {key: entry for part in parts for key, entry in part[name].items()}
            value = {numbers[key]: entries[key] for key in sorted(entries, key=numbers.__getitem__)}
        elif isinstance(value, dict):
            value = _merge_states([part[name] for part in parts], numbers)
        merged[name] = value
    return merged


def _in_order(parts: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    merged = {name: value for part in parts for name, value in part.items()}
    return {name: merged[name] for name in names}


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
