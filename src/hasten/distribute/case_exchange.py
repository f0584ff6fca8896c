"""Exchange of cases between ranks, point to point, for ranks that share no file with all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from hasten.cache.arena import Arena
from hasten.cache.arena_in_memory import CaseRow, case_rows, case_values, copy_values, empty_like, point_slices
from hasten.distribute.group import message_device

IN_FLIGHT = 256 * 2**20
"""Approximate number of bytes that a rank sends and receives before it waits."""


class Move(NamedTuple):
    """A case that another rank needs."""

    id: str
    source: int
    target: int


def moves(now: Sequence[Sequence[str]], then: Sequence[Sequence[str]]) -> list[Move]:
    """The moves after which each rank holds its cases of `then`, in an order that is the same on all ranks.

    now, then: ids by rank; each of `then` is held by some rank, and the first such rank sends it.
    """
    holder = {name: rank for rank in reversed(range(len(now))) for name in now[rank]}
    # Interleave the targets, so that no rank waits until another has received all of its cases.
    numbered = [
        (number, Move(name, holder[name], rank))
        for rank, names in enumerate(then)
        for number, name in enumerate(name for name in names if name not in now[rank])
    ]
    return [move for _, move in sorted(numbered, key=lambda each: (each[0], each[1].target))]


def waves(pending: Iterable[Move], size: Callable[[str], int], limit: int) -> list[list[Move]]:
    """The moves in groups in each of which no rank transfers more than `limit` bytes, or than a single case."""
    groups: list[list[Move]] = []
    busy: Counter[int] = Counter()
    for move in pending:
        cost = size(move.id)
        if not groups or any(busy[rank] + cost > limit for rank in (move.source, move.target)):
            groups.append([])
            busy.clear()
        groups[-1].append(move)
        busy.update({move.source: cost, move.target: cost})
    return groups


def gather_case_rows(arena: Arena) -> dict[str, CaseRow]:
    """Shape, points and geometry of every case that some rank holds, by id. All ranks call it."""
    rows_by_rank: list[tuple[CaseRow, ...]] = [()] * distributed.get_world_size()
    distributed.all_gather_object(rows_by_rank, case_rows(arena))
    return {row.id: row for rows in rows_by_rank for row in rows}


def exchange(
    arena: Arena,
    rows: dict[str, CaseRow],
    now: Sequence[Sequence[str]],
    then: Sequence[Sequence[str]],
    *,
    limit: int = IN_FLIGHT,
) -> Arena:
    """Return this rank's cases of `then`, in that order, bit for bit. All ranks call it with equal arguments.

    arena: holds this rank's cases of `now`, on the host or a device. rows: from `gather_case_rows`. In memory at once
    are the old arena, the new one, and `limit` bytes where the process group can't send from the arena's device.
    """
    rank = distributed.get_rank()
    target_rows = [rows[name] for name in then[rank]]
    new_arena = empty_like(arena, target_rows, arena.store.device)
    sources = _values_by_id(arena, [rows[name] for name in arena.ids])
    targets = _values_by_id(new_arena, target_rows)
    for name in targets.keys() & sources.keys():
        copy_values(sources[name], targets[name])
    item = arena.store.values["image"].element_size()
    for wave in waves(moves(now, then), lambda name: rows[name].num_bytes(arena.num_channels, item), limit):
        _send(wave, rank, sources, targets)
    return new_arena


def _values_by_id(arena: Arena, rows: Sequence[CaseRow]) -> dict[str, tuple[Tensor, ...]]:
    return {
        row.id: case_values(arena, case, points)
        for case, (row, points) in enumerate(zip(rows, point_slices(rows), strict=True))
    }


def _send(
    wave: Sequence[Move],
    rank: int,
    sources: dict[str, tuple[Tensor, ...]],
    targets: dict[str, tuple[Tensor, ...]],
) -> None:
    """Make the moves of a wave in which this rank takes part."""
    operations: list[distributed.P2POp] = []
    copies: list[tuple[Tensor, Tensor]] = []
    for number, move in enumerate(wave):
        if rank not in (move.source, move.target):
            continue
        sends = rank == move.source
        peer = move.target if sends else move.source
        for part, values in enumerate(sources[move.id] if sends else targets[move.id]):
            if not values.numel():
                continue
            as_bytes = values.view(torch.uint8)  # gloo and nccl don't know all types
            message = as_bytes.to(message_device())
            if not sends and message is not as_bytes:
                copies.append((as_bytes, message))
            operation = distributed.isend if sends else distributed.irecv
            operations.append(distributed.P2POp(operation, message, peer, tag=3 * number + part))
    if operations:
        for work in distributed.batch_isend_irecv(operations):
            work.wait()
    for target, source in copies:
        target.copy_(source)
