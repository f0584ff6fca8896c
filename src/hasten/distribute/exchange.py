"""Exchange of cases between ranks, point to point, for ranks that share no file with all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cache.own import CaseRow, own_cases, point_slices, room_for, rows_of, values_of
from hasten.cases.types import CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.config.settled import PlannedRun
from hasten.distribute.parts import CaseParts, Deal, FileHome, Home, own_ids, parts_mistake, prepared_voxels
from hasten.sample.share import Share

Group = distributed.ProcessGroup | None

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
    pending = [
        Move(name, holder[name], rank) for rank, names in enumerate(then) for name in names if name not in now[rank]
    ]
    # Interleave the targets, so that no rank waits until another has received all of its cases.
    turn: dict[int, int] = {}
    numbered = []
    for move in pending:
        turn[move.target] = turn.get(move.target, -1) + 1
        numbered.append((turn[move.target], move))
    return [move for _, move in sorted(numbered, key=lambda each: (each[0], each[1].target))]


def waves(pending: Iterable[Move], size: Callable[[str], int], limit: int) -> list[list[Move]]:
    """The moves in groups in each of which no rank transfers more than `limit` bytes, or than a single case."""
    groups: list[list[Move]] = []
    busy: dict[int, int] = {}
    for move in pending:
        cost = size(move.id)
        if not groups or any(busy.get(rank, 0) + cost > limit for rank in (move.source, move.target)):
            groups.append([])
            busy = {}
        groups[-1].append(move)
        for rank in (move.source, move.target):
            busy[rank] = busy.get(rank, 0) + cost
    return groups


def told_rows(arena: Arena, group: Group = None) -> dict[str, CaseRow]:
    """Shape, points and geometry of every case that some rank holds, by id. All ranks call it."""
    local_rows = {row.id: row for row in rows_of(arena)}
    rows_by_rank: list[dict[str, CaseRow] | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(rows_by_rank, local_rows, group=group)
    return {name: row for rank_rows in rows_by_rank for name, row in (rank_rows or {}).items()}


def exchange(
    arena: Arena,
    rows: dict[str, CaseRow],
    now: Sequence[Sequence[str]],
    then: Sequence[Sequence[str]],
    *,
    group: Group = None,
    limit: int = IN_FLIGHT,
) -> Arena:
    """Return this rank's cases of `then`, in that order, bit for bit. All ranks call it with equal arguments.

    arena: holds this rank's cases of `now`, on the host or a device. rows: from `told_rows`. In memory at once are the
    old arena, the new one, and `limit` bytes where the group can't send from the arena's device.
    """
    rank = distributed.get_rank(group)
    target_rows = [rows[name] for name in then[rank]]
    new_arena = room_for(target_rows, arena, arena.store.device)
    source_slices, target_slices = point_slices([rows[name] for name in arena.ids]), point_slices(target_rows)
    positions = {name: case for case, name in enumerate(arena.ids)}

    def source_values(name: str) -> tuple[Tensor, ...]:
        return values_of(arena, positions[name], source_slices[positions[name]])

    def target_values(name: str) -> tuple[Tensor, ...]:
        (case,) = new_arena.index((name,))
        return values_of(new_arena, case, target_slices[case])

    for name in then[rank]:
        if name in positions:
            for target, source in zip(target_values(name), source_values(name), strict=True):
                target.copy_(source)
    wire = _wire(arena.store.device, group)
    item = arena.store.values["image"].element_size()
    for wave in waves(moves(now, then), lambda name: rows[name].num_bytes(arena.num_channels, item), limit):
        _send(wave, rank, source_values, target_values, wire, group)
    return new_arena


def _wire(device: torch.device, group: Group) -> torch.device:
    """Where tensors must lie for the group to send them."""
    backend = str(distributed.get_backend(group))
    if backend == "gloo":
        return torch.device("cpu")
    if backend == "nccl" and device.type != "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _send(
    wave: Sequence[Move],
    rank: int,
    source_values: Callable[[str], tuple[Tensor, ...]],
    target_values: Callable[[str], tuple[Tensor, ...]],
    wire: torch.device,
    group: Group,
) -> None:
    works: list[distributed.P2POp] = []
    received: list[tuple[Tensor, Tensor]] = []
    for number, move in enumerate(wave):
        if rank not in (move.source, move.target):
            continue
        for part, values in enumerate(source_values(move.id) if rank == move.source else target_values(move.id)):
            if not values.numel():
                continue
            as_bytes = values.view(torch.uint8)  # gloo and nccl don't know all types
            same_device, sends = as_bytes.device.type == wire.type, rank == move.source
            message = (
                as_bytes if same_device else as_bytes.to(wire) if sends else torch.empty_like(as_bytes, device=wire)
            )
            if not sends and not same_device:
                received.append((as_bytes, message))
            peer = move.target if sends else move.source
            operation = distributed.isend if sends else distributed.irecv
            peer = peer if group is None else distributed.get_global_rank(group, peer)
            works.append(distributed.P2POp(operation, message, peer, group, tag=3 * number + part))
    if works:
        for work in distributed.batch_isend_irecv(works):
            work.wait()
    for target, source in received:
        target.copy_(source)


class SentHome:
    """Each case is prepared by its first rank and kept in memory; in a new round, ranks get cases from one another.

    A node's cache holds only the training cases that its ranks started with. A run that is resumed in a later round
    starts with the cases of that round.
    """

    def __init__(
        self,
        deal: Deal,
        share: Share,
        case_set: CaseSet,
        prepare: PrepareConfig,
        cache: CacheConfig,
        device: str,
        *,
        group: Group = None,
        limit: int = IN_FLIGHT,
    ) -> None:
        self.deal, self.share, self.group, self.limit = deal, share, group, limit
        self.case_set, self.prepare, self.cache, self.device = case_set, prepare, cache, device
        self._arena: Arena | None = None
        self._rows: dict[str, CaseRow] = {}
        self._round = -1

    def arena(self, round: int) -> Arena:
        """A collective: all ranks call it."""
        if self._arena is None:
            self._arena = self._first(round)
        elif round != self._round:
            if not self._rows:
                self._rows = told_rows(self._arena, self.group)
            now, then = self._ids_by_rank(self._round), self._ids_by_rank(round)
            self._arena = exchange(self._arena, self._rows, now, then, group=self.group, limit=self.limit)
        self._round = round
        return self._arena

    def _ids_by_rank(self, round: int) -> list[tuple[str, ...]]:
        size = self.share.size
        return [own_ids(self.deal, round, Share(rank, size)) for rank in range(size)]

    def _first(self, round: int) -> Arena:
        ids = own_ids(self.deal, round, self.share)
        stored = stored_cases(self.case_set, ids, self.prepare, self.cache)
        return own_cases(stored, stored.index(ids), torch.device(self.device))


def stored_cases(case_set: CaseSet, ids: Sequence[str], prepare: PrepareConfig, cache: CacheConfig) -> Arena:
    """The cases of these ids in a separate cache entry, read from the file, as in the entry of the whole set.

    Raises the errors of `get_arena`.
    """
    requested = set(ids)
    subset = replace(case_set, cases=tuple(case for case in case_set.cases if case.id in requested))
    return get_arena(subset, prepare, replace(cache, home="file"))


def case_parts(
    config: PlannedRun,
    case_set: CaseSet,
    train: Sequence[str],
    fingerprint: Fingerprint,
    share: Share,
    device: torch.device,
    *,
    send: bool = False,
    neighbours: int = 1,
) -> CaseParts:
    """The parts of a run that has `distribute.parts`. train: ids of the training cases.

    fingerprint: of `case_set`. send: whether cases travel between ranks; else every host's cache holds all of them.
    neighbours: ranks on this host. Raises ValueError for cases or a batch that can't be dealt so.
    """
    settings, batch = config.distribute, config.sample.batch_size
    mistake = parts_mistake(len(train), settings.parts, batch, share.pieces, share.size)
    if mistake:
        raise ValueError(mistake)
    voxels = prepared_voxels(fingerprint, [case.id for case in case_set.cases], config.prepare.spacing)
    deal = Deal(
        costs={name: voxels[name] for name in train},
        parts=settings.parts,
        seed=config.train.seed,
        every=settings.exchange_every,
    )
    place = (deal, share, case_set, config.prepare, config.cache, str(device))
    home: Home = SentHome(*place) if send else FileHome(*place, neighbours=neighbours)
    return CaseParts(deal, share, home)
