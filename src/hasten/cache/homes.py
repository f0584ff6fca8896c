"""Placement of an arena's cases: on the device, in host memory or in the file, in this order as budgets allow."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from hasten.cache.arena import Arena, Part
from hasten.cache.file import Selection, open_arena
from hasten.cache.memory import available_memory
from hasten.cache.own import own_cases
from hasten.config.schema import CacheConfig
from hasten.config.size import parse_size

log = logging.getLogger(__name__)


class Placement(NamedTuple):
    """Positions of the cases in each home."""

    device: tuple[int, ...]
    ram: tuple[int, ...]
    file: tuple[int, ...]


def place(sizes: Sequence[int], order: Sequence[int], *, device: int, ram: int) -> Placement:
    """Cases in the given order go to the first home that still has room. sizes: bytes of each case; budgets: bytes."""
    homes: tuple[list[int], list[int], list[int]] = ([], [], [])
    room = [device, ram]
    for case in order:
        home = next((number for number, free in enumerate(room) if sizes[case] <= free), 2)
        homes[home].append(case)
        if home < 2:
            room[home] -= sizes[case]
    return Placement(*(tuple(sorted(each)) for each in homes))


def at_home(
    cases: Selection, config: CacheConfig, device: torch.device, first: Sequence[str] = (), *, only: bool = False
) -> Arena:
    """Open prepared cases in the home that `config` names. first: ids of the training cases, which fast homes are for.

    only: fast homes hold nothing else, as a process does that trains on a part of the cases; where they all lie on the
    device, the arena holds no other case. Raises ValueError where the device is too small for the requested cases,
    and the errors of `open_arena`.
    """
    if only:
        return _selection_at_home(cases, config, device, first)
    if config.home in ("file", "ram"):
        return open_arena(cases, home=config.home)
    if config.home == "device" and device.type == "cpu":
        return open_arena(cases, home="ram")
    if config.home == "device":
        return _copy_to_device(cases, device, "home=device")
    arena = open_arena(cases, home="file")
    preferred = arena.index(tuple(first))
    order = [*preferred, *sorted(set(range(len(arena.ids))) - set(preferred))]
    placement = place(arena.case_bytes, order, device=_device_budget(config, device), ram=_ram_budget(config))
    return _open_placed(arena, cases, placement, device)


def _selection_at_home(cases: Selection, config: CacheConfig, device: torch.device, ids: Sequence[str]) -> Arena:
    arena = open_arena(cases, home="file")
    selected = arena.index(tuple(ids))
    if config.home == "file":
        return arena
    if config.home == "ram" or (config.home == "device" and device.type == "cpu"):
        placement = Placement((), selected, ())
    elif config.home == "device":
        placement = Placement(selected, (), ())
    else:
        placement = place(arena.case_bytes, selected, device=_device_budget(config, device), ram=_ram_budget(config))
    if len(placement.device) < len(selected):
        return _open_mixed(cases, arena, placement, device)
    return _copy_to_device(cases, device, "home=device", selected)


def _device_budget(config: CacheConfig, device: torch.device) -> int:
    if device.type == "cpu":
        return 0  # its memory is the host's
    if config.device != "auto":
        return parse_size(config.device)
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0


def _ram_budget(config: CacheConfig) -> int:
    return available_memory() // 2 if config.ram == "auto" else parse_size(config.ram)


def _open_placed(arena: Arena, cases: Selection, placement: Placement, device: torch.device) -> Arena:
    if len(placement.device) == len(arena.ids):
        return _copy_to_device(cases, device, "device")
    if len(placement.ram) == len(arena.ids):
        return open_arena(cases, home="ram")
    return _open_mixed(cases, arena, placement, device)


def _open_mixed(cases: Selection, arena: Arena, placement: Placement, device: torch.device) -> Arena:
    """Some cases on the device, some in memory; all others in the file."""
    arena = open_arena(cases, home="ram", held=placement.ram, verified=placement.device)
    if placement.device:
        arena = replace(arena, part=part_of(arena, placement.device, device))
    counts = zip(Placement._fields, placement, strict=True)
    return replace(arena, home=", ".join(f"{len(some)} cases in {name}" for name, some in counts if some))


def _copy_to_device(cases: Selection, device: torch.device, field: str, some: Sequence[int] | None = None) -> Arena:
    """Verified, by way of the page cache, which needs no memory of its own. some: positions; None for all cases."""
    positions = range(len(cases.rows)) if some is None else some
    arena = open_arena(cases, home="file", verified=positions)
    flat = arena.store.values["label"].numel() == sum(map(math.prod, arena.shapes))
    try:
        # In one copy, unless the shards also hold other cases or gaps.
        return arena.to(device, home="device") if flat and some is None else own_cases(arena, positions, device)
    except torch.OutOfMemoryError as error:
        raise _too_large(sum(arena.case_bytes[case] for case in positions), device, field) from error


def part_of(arena: Arena, cases: Sequence[int], device: torch.device) -> Part:
    """Copy some cases to the device. Raises ValueError where they do not fit."""
    source, voxels = arena.store, [arena.label(case).numel() for case in cases]
    try:
        values = {
            key: torch.empty(sum(voxels) * source.channels[key], dtype=value.dtype, device=device)
            for key, value in source.values.items()
        }
    except torch.OutOfMemoryError as error:
        raise _too_large(sum(arena.case_bytes[case] for case in cases), device, "device") from error
    start, offsets = 0, []
    for case, size in zip(cases, voxels, strict=True):
        for key, target in values.items():
            count, first = source.channels[key], arena.offsets[case]
            target[start * count : (start + size) * count].copy_(
                source.values[key][first * count : (first + size) * count]
            )
        offsets.append(start)
        start += size
    rows = torch.tensor(cases, dtype=torch.int64)
    store = replace(
        source, values=values, ids=tuple(arena.ids[case] for case in cases), shape=source.shape[rows].to(device),
        offset=torch.tensor(offsets, dtype=torch.int64, device=device),
        sets=None,  # crops are drawn on the host, from those of all cases
    )  # fmt: skip
    position = torch.full((len(arena.ids),), -1, dtype=torch.int64)
    position[rows] = torch.arange(len(cases))
    return Part(store=store, position=position)


def _too_large(size: int, device: torch.device, field: str) -> ValueError:
    return ValueError(
        f"cache.{field}: {size / 2**30:.1f} GiB of prepared cases do not fit in what {device} has free; "
        "set cache.home=auto, or cache.device to less"
    )
