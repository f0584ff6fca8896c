"""Builds segments and programs from a chain and cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain, Stage, is_per_sample, stages_of
from hasten.augment.fused import render_fused
from hasten.augment.program import HostSource, Program, ResidentSource, Segment
from hasten.augment.render import render
from hasten.augment.store import check_fits, common_size, size_of, store_of_batch, with_sets
from hasten.augment.whole_cases import WholeCases
from hasten.cache.arena import Arena, Pages, Store
from hasten.devices import kind_of
from hasten.sample.order import CaseOrder, Dealt, epoch_order, part_order
from hasten.sample.patch_stages import DealingRounds, one_stage
from hasten.sample.share import WHOLE, Share, share_mistake


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseSource:
    """The source of batches, and its location."""

    store: Store
    pages: Pages | None = None
    whole_cases: WholeCases | None = None
    """Transforms that give the samples; `store` is then an example of them."""


def cases_of_arena(arena: Arena, spatial_dims: int) -> CaseSource:
    """The prepared cases of an arena, where they are; nothing is copied."""
    return CaseSource(store=replace(arena.store, spatial_dims=spatial_dims), pages=arena.pages)


def make_segment(
    chain: Chain,
    cases: CaseSource,
    *,
    batch_size: int,
    seed: int = 0,
    train_cases: Sequence[int] | Dealt | None = None,
    device: torch.device | str = "cpu",
    share: Share = WHOLE,
    fuse: bool = False,
    spans: bool = False,
) -> Segment:
    """Batches of a chain and cases.

    train_cases: positions that are drawn from, in parts or not; None for all. device: of the batches. share:
    this rank's part of every batch; operations that mix the samples of a batch mix those of the share. fuse: nnU-Net's
    chain in few kernels on a GPU (`render_fused`). Raises ValueError where chain and cases do not fit, naming the
    operation, and for a batch that can't be dealt among the ranks.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; at least 1 is needed")
    parts = len(train_cases.parts) if isinstance(train_cases, Dealt) else 0
    mistake = share_mistake(batch_size, share.pieces, share.size, parts)
    if mistake:
        raise ValueError(mistake)
    store, where = cases.store, torch.device(device)
    if chain.crop is None:
        size = common_size(store)
    else:
        check_fits(store, chain.crop)
        store, size = with_sets(store, chain.crop), chain.crop.size
    stages = stages_of(chain, size)
    seed_tensor = torch.tensor(seed, dtype=torch.int64, device=store.device)
    whole = cases.whole_cases
    return Segment(
        chain=chain,
        stages=stages,
        store=store,
        device=where,
        batch_size=batch_size,
        seed=seed_tensor,
        order=_order(train_cases, store, seed_tensor, share, batch_size, chain.num_samples),
        share=share,
        source=_source(cases, stages, where, crops=chain.crop is not None),
        num_samples=chain.num_samples if whole is None else whole.num_samples,
        pages=cases.pages,
        renderer=render_fused if fuse else render,
        spans=spans,
    )


def _source(
    cases: CaseSource, stages: Sequence[Stage], device: torch.device, *, crops: bool
) -> ResidentSource | HostSource:
    if cases.store.device.type == device.type:
        if cases.whole_cases is None:
            return ResidentSource()
        return HostSource(stages=0, whole_cases=cases.whole_cases, prepared_on_host=False)
    # Up to the last one that can only run on the host, as all do without float64; a crop is cut out there too.
    last = [number + 1 for number, stage in enumerate(stages) if is_per_sample(stage)]
    last += [] if kind_of(device).float64 else [len(stages)]
    return HostSource(stages=max([int(crops), *last]), whole_cases=cases.whole_cases)


def _order(
    train_cases: Sequence[int] | Dealt | None, store: Store, seed: Tensor, share: Share, batch_size: int, repeats: int
) -> CaseOrder:
    if isinstance(train_cases, Dealt):
        return part_order(train_cases, seed=seed, share=share, batch_size=batch_size, repeats=repeats)
    cases = range(store.shape.shape[0]) if train_cases is None else train_cases
    positions = torch.tensor(list(cases), dtype=torch.int64, device=seed.device)
    return partial(epoch_order, cases=positions, seed=seed, share=share, batch_size=batch_size, repeats=repeats)


def make_program(chain: Chain, cases: CaseSource, **options: Any) -> Program:
    """A program of one segment. options: those of `make_segment`."""
    return program_of(make_segment(chain, cases, **options))


def program_of(segment: Segment) -> Program:
    """A program that makes every batch by one segment."""
    stages = one_stage(segment.warp.out, segment.batch_size)
    return Program(lambda round, stage: segment, DealingRounds(stages=stages))


def augment_batch(segment: Segment, batch: Mapping[str, Tensor], first: int) -> Batch:
    """A batch of samples `first` ... through the operations of a chain without a crop. batch: (B, C, *S) by key.

    Raises ValueError if its shape does not match the segment.
    """
    entries = {key: batch[key] for key in segment.chain.keys}
    store, entering = store_of_batch(entries, segment.device), segment.warp.size
    if store.channels != segment.store.channels or size_of(entries) != entering:
        raise ValueError(
            f"a batch has {dict(store.channels)} channels and {size_of(entries)} voxels, the program was made for "
            f"{dict(segment.store.channels)} and {entering}; samples must be alike"
        )
    count, device = store.shape.shape[0], segment.device
    rows = torch.arange(count, device=device)
    with torch.no_grad():
        draws = segment.drawn_for(rows, rows + first)
    samples = {key: store.values[key].view(value.shape) for key, value in entries.items()}
    return segment.transformed(samples, draws)


def segment_of_batch(
    chain: Chain, batch: Mapping[str, Tensor], seed: int, device: torch.device | str, **options: Any
) -> Segment:
    """A segment for `augment_batch`, of batches like this one, (B, C, *S) by key. options: of `make_segment`."""
    store = store_of_batch(batch, device)
    return make_segment(chain, CaseSource(store=store), batch_size=len(store.ids), seed=seed, device=device, **options)
