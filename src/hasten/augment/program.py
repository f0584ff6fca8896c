"""A chain bound to data: a batch as a pure function of (data, seed, step)."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain, PerSample, Placed, Stage, stages_of
from hasten.augment.draw import Draws, draw_stages, part
from hasten.augment.host import NOTHING_COMPILED, Kernels, follow_on_host, render_on_host
from hasten.augment.per_sample import run_per_sample
from hasten.augment.read import Cases
from hasten.augment.render import follow, render
from hasten.augment.store import Store, check_fits, common_size, with_sets
from hasten.sample.order import cases_of
from hasten.sample.random import hash32, sample_key

log = logging.getLogger(__name__)

_STEPS_PER_DRAW = 16
"""Drawing is some hundreds of small operations whatever the number of samples, so steps are drawn together."""
_PATCH = 0x2C1B
"""Salt of the words that a crop is keyed by, so that operations after it never share them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainProgram:
    """`program(step)` gives the batch of that step, whatever was asked for before. Everything lies on one device."""

    chain: Chain
    stages: tuple[Stage, ...]
    store: Store
    seed: Tensor
    """() int64."""
    train_cases: Tensor
    """(n,) int64 positions in the store."""
    batch_size: int
    kernels: Kernels = NOTHING_COMPILED
    renderer: Any = render
    """On a GPU, compiled or not."""
    compiled: bool = False
    why: str = "not asked for"
    compile_seconds: float = 0.0
    spans: bool = False
    """Whether a profile shows each operation by its name; costs a little."""

    def __call__(self, step: int) -> Batch:
        """(B, C, *S) by key: samples step * B ... step * B + B - 1 of the stream."""
        return next(self.batches(step, step + 1))

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1."""
        for draws in self.draws(first, last):
            yield self.rendered(draws)

    def draws(self, first: int, last: int) -> Iterator[Draws]:
        """What is drawn for these steps."""
        size = self.batch_size
        for begin in range(first, last, _STEPS_PER_DRAW):
            end = min(last, begin + _STEPS_PER_DRAW)
            with torch.no_grad():
                sample = torch.arange(begin * size, end * size, device=self.seed.device)
                drawn = self.drawn(sample)
            for number in range(end - begin):
                yield part(drawn, number * size, size)

    def drawn(self, sample: Tensor) -> Draws:
        """The numbers of the given samples. sample: (B,) int64 global sample numbers in a row."""
        crop, store = self.chain.crop, self.store
        repeats = 1 if crop is None else crop.num_samples
        # Samples of one case follow each other: as many items as they can touch are looked up, and repeated.
        item = torch.div(sample, repeats, rounding_mode="floor")
        items = item[0] + torch.arange(sample.shape[0] // repeats + 2, device=sample.device)
        case = self.train_cases[cases_of(self.seed, items, self.train_cases.shape[0])][item - item[0]]
        key = sample_key(self.seed, sample)
        if crop is None:
            start = torch.zeros(sample.shape[0], 3, dtype=torch.int64, device=sample.device)
        else:
            start = crop.start(hash32(key ^ _PATCH), case, store.shape[case], store.sets)
        return Draws(case, start, key, draw_stages(self.stages, key, store.channels, store.spatial_dims))

    def rendered(self, draws: Draws) -> Batch:
        """The batch of what was drawn."""
        store, split = self.store, _split(self.stages)
        cases = {
            key: Cases(store.values[key], store.shape, store.offset, store.channels[key]) for key in self.chain.keys
        }
        on_host = self.seed.device.type != "cuda"
        with torch.no_grad():
            if on_host:
                batch = render_on_host(
                    self.stages[:split], cases, _first(draws, split), store.spatial_dims, self.kernels
                )
            else:
                batch = self.renderer(self.stages[:split], cases, _first(draws, split), store.spatial_dims)
            for at in range(split, len(self.stages)):
                batch = self._followed(at, batch, draws, on_host)
        return batch

    def _followed(self, at: int, batch: Batch, draws: Draws, on_host: bool) -> Batch:
        stage, numbers, dims = self.stages[at], draws.stages[at : at + 1], self.store.spatial_dims
        if isinstance(stage, Placed) and isinstance(stage.op, PerSample):
            return run_per_sample(stage, batch, draws.key)
        if on_host:
            return follow_on_host((stage,), batch, numbers, dims, self.kernels, first=at)
        return follow((stage,), batch, numbers, dims)


def _split(stages: Sequence[Stage]) -> int:
    """How many stages lie before the first that runs sample by sample."""
    kinds = [isinstance(stage, Placed) and isinstance(stage.op, PerSample) for stage in stages]
    return kinds.index(True) if True in kinds else len(stages)


def _first(draws: Draws, count: int) -> Draws:
    return draws._replace(stages=draws.stages[:count])


def make_chain_program(
    chain: Chain,
    store: Store,
    *,
    batch_size: int,
    seed: int = 0,
    train_cases: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> ChainProgram:
    """Bind a chain to data. store: on the host. Raises ValueError where the two do not fit, naming the operation."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; at least 1 is needed")
    if chain.crop is None:
        size = common_size(store)
    else:
        check_fits(store, chain.crop)
        store, size = with_sets(store, chain.crop), chain.crop.size
    moved = store.to(device)
    cases = range(len(store.ids)) if train_cases is None else train_cases
    return ChainProgram(
        chain=chain, stages=stages_of(chain, size), store=moved, batch_size=batch_size,
        seed=torch.tensor(seed, dtype=torch.int64, device=moved.device),
        train_cases=torch.tensor(list(cases), device=moved.device),
    )  # fmt: skip
