"""Placement of an arena's cases: on the device, in host memory or in the file, the first that has room for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from hasten.cache.arena import Arena, PointSets
from hasten.cache.file import Selection, open_arena, verify_cases
from hasten.config.schema import CacheConfig
from hasten.config.size import parse_size
from hasten.observe.cores import available_memory


def open_at_home(
    cases: Selection, config: CacheConfig, device: torch.device, own: Sequence[str] | None = None
) -> Arena:
    """Open prepared cases in the home that `config` names.

    own: ids of the cases that a process uses which trains on a part of them: memory holds no other. Raises ValueError
    where the device is too small for the cases, and the errors of `open_arena`.
    """
    home = "ram" if config.home == "device" and device.type == "cpu" else config.home
    if home == "file":
        return open_arena(cases, home=home)
    arena = open_arena(cases, home="file")
    used = range(len(arena.ids)) if own is None else arena.index(tuple(own))
    if home == "auto":
        size = sum(arena.case_bytes[case] for case in used)
        if size <= _device_budget(config, device):
            home = "device"
        else:
            home = "ram" if size <= _ram_budget(config) else "file"
    if home == "device":
        return _copy_to_device(arena, cases, device, used)
    return open_arena(cases, home="ram", verified=used) if home == "ram" else arena


def _device_budget(config: CacheConfig, device: torch.device) -> int:
    if device.type == "cpu":
        return 0  # its memory is the host's
    if config.device != "auto":
        return parse_size(config.device)
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0


def _ram_budget(config: CacheConfig) -> int:
    return available_memory() // 2 if config.ram == "auto" else parse_size(config.ram)


def _copy_to_device(arena: Arena, cases: Selection, device: torch.device, positions: Sequence[int]) -> Arena:
    """Copy the cases after verifying their checksums. Both go through the page cache and need no further memory."""
    verify_cases(arena, cases, positions)
    voxels = sum(math.prod(arena.shapes[case]) for case in positions)
    try:
        # In one copy, unless the shards also hold other cases or gaps.
        if voxels == arena.store.values["label"].numel() and list(positions) == list(range(len(arena.ids))):
            return arena.to(device, home="device")
        return copy_cases(arena, positions, device)
    except torch.OutOfMemoryError as error:
        size = sum(arena.case_bytes[case] for case in positions)
        raise ValueError(
            f"cache.home: {size / 2**30:.1f} GiB of prepared cases do not fit in what {device} has free; "
            "set cache.home=ram, or cache.device to less"
        ) from error


def copy_cases(arena: Arena, cases: Sequence[int], device: torch.device | str) -> Arena:
    """Copy cases, by position, to a new arena on `device`. Raises torch.OutOfMemoryError."""
    store, sets = arena.store, arena.store.sets
    assert sets is not None
    chosen = torch.tensor(list(cases), dtype=torch.int64)
    shape, counts = store.shape[chosen], sets.num[chosen]
    voxels = shape.prod(1)
    offset = voxels.cumsum(0) - voxels
    first = (counts.flatten().cumsum(0) - counts.flatten()).view_as(counts)
    values = {
        key: torch.empty(int(voxels.sum()) * store.channels[key], dtype=value.dtype, device=device)
        for key, value in store.values.items()
    }
    points = torch.empty(int(counts.sum()), dtype=torch.int32, device=device)
    starts = [0, *accumulate(counts.sum(1).tolist())]
    # In an arena on disk the points of the cases are in any order.
    sources = sets.first[:, 0].tolist() if arena.num_classes > 1 else [0] * len(arena.ids)
    for number, (case, start) in enumerate(zip(cases, offset.tolist(), strict=True)):
        for key, whole in (("image", arena.image(case)), ("label", arena.label(case))):
            begin = start * store.channels[key]
            values[key][begin : begin + whole.numel()].copy_(whole.reshape(-1))
        length = starts[number + 1] - starts[number]
        points[starts[number] : starts[number + 1]].copy_(sets.points[sources[case] : sources[case] + length])
    copied = replace(
        store,
        values=values,
        offset=offset.to(device),
        shape=shape.to(device),
        ids=tuple(arena.ids[case] for case in cases),
        sets=PointSets(points, first.to(device), counts.to(device)),
        per_case={key: value[chosen].to(device) for key, value in store.per_case.items()},
    )
    return replace(
        arena,
        store=copied,
        shapes=tuple(arena.shapes[case] for case in cases),
        offsets=tuple(offset.tolist()),
        geometry=tuple(arena.geometry[case] for case in cases) if arena.geometry else (),
        num_voxels=tuple(arena.num_voxels[case] for case in cases) if arena.num_voxels else (),
        home="ram" if torch.device(device).type == "cpu" else "device",
        pages=None,
    )
