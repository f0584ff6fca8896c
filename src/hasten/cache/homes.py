"""Placement of an arena's cases: on the device, in host memory or in the file, in this order as budgets allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from hasten.cache.arena import Arena, DevicePart
from hasten.cache.arena_in_memory import copy_cases
from hasten.cache.file import Selection, open_arena, verify_cases
from hasten.cache.memory import available_memory
from hasten.config.schema import CacheConfig
from hasten.config.size import parse_size


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


def open_at_home(
    cases: Selection, config: CacheConfig, device: torch.device, first: Sequence[str] = (), *, only: bool = False
) -> Arena:
    """Open prepared cases in the home that `config` names. first: ids of the training cases, which fast homes are for.

    only: fast homes hold nothing else, as a process does that trains on a part of the cases; where they all lie on the
    device, the arena holds no other case. Raises ValueError where the device is too small for the requested cases,
    and the errors of `open_arena`.
    """
    home = "ram" if config.home == "device" and device.type == "cpu" else config.home
    if home == "file" or (home == "ram" and not only):
        return open_arena(cases, home=home)
    arena = open_arena(cases, home="file")
    order = arena.index(tuple(first))
    if not only:
        order = (*order, *sorted(set(range(len(arena.ids))) - set(order)))
    if home == "auto":
        placement = place(arena.case_bytes, order, device=_device_budget(config, device), ram=_ram_budget(config))
    else:
        placement = Placement(*(order if home == name else () for name in Placement._fields))
    if len(placement.device) == len(order):
        field = "home=device" if home == "device" else "device"
        return _copy_to_device(arena, cases, device, field, order if only else range(len(arena.ids)))
    if len(placement.ram) == len(arena.ids):
        return open_arena(cases, home="ram")
    return _open_mixed(cases, placement, device)


def _device_budget(config: CacheConfig, device: torch.device) -> int:
    if device.type == "cpu":
        return 0  # its memory is the host's
    if config.device != "auto":
        return parse_size(config.device)
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0


def _ram_budget(config: CacheConfig) -> int:
    return available_memory() // 2 if config.ram == "auto" else parse_size(config.ram)


def _open_mixed(cases: Selection, placement: Placement, device: torch.device) -> Arena:
    """Some cases on the device, some in memory; all others in the file."""
    arena = open_arena(cases, home="ram", verified=sorted({*placement.ram, *placement.device}))
    if placement.device:
        arena = replace(arena, part=part_of(arena, placement.device, device))
    counts = zip(Placement._fields, placement, strict=True)
    return replace(arena, home=", ".join(f"{len(some)} cases in {name}" for name, some in counts if some))


def _copy_to_device(
    arena: Arena, cases: Selection, device: torch.device, field: str, positions: Sequence[int]
) -> Arena:
    """Copy the cases after verifying their checksums. Both go through the page cache and need no further memory."""
    verify_cases(arena, cases, positions)
    voxels = sum(math.prod(arena.shapes[case]) for case in positions)
    try:
        # In one copy, unless the shards also hold other cases or gaps.
        if voxels == arena.store.values["label"].numel() and list(positions) == list(range(len(arena.ids))):
            return arena.to(device, home="device")
        return copy_cases(arena, positions, device)
    except torch.OutOfMemoryError as error:
        raise _too_large(arena, positions, device, field) from error


def part_of(arena: Arena, cases: Sequence[int], device: torch.device) -> DevicePart:
    """Copy some cases to the device. Raises ValueError where they do not fit."""
    try:
        copied = copy_cases(arena, cases, device)
    except torch.OutOfMemoryError as error:
        raise _too_large(arena, cases, device, "device") from error
    position = torch.full((len(arena.ids),), -1, dtype=torch.int64)
    position[list(cases)] = torch.arange(len(cases))
    # Without points: crops are drawn on the host, from those of all cases.
    return DevicePart(store=replace(copied.store, sets=None), position=position)


def _too_large(arena: Arena, cases: Sequence[int], device: torch.device, field: str) -> ValueError:
    size = sum(arena.case_bytes[case] for case in cases)
    return ValueError(
        f"cache.{field}: {size / 2**30:.1f} GiB of prepared cases do not fit in what {device} has free; "
        "set cache.home=auto, or cache.device to less"
    )
