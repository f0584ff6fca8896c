"""A chain bound to data: a batch as a pure function of (data, seed, step)."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain, PerSample, Placed, Stage, stage_name, stages_of
from hasten.augment.draw import Draws, draw_stages, part
from hasten.augment.host import NOTHING_COMPILED, Kernels, follow_on_host, render_on_host
from hasten.augment.per_sample import run_per_sample
from hasten.augment.read import Cases
from hasten.augment.render import follow, render
from hasten.augment.store import Store, check_fits, common_size, with_sets
from hasten.observe.ranges import Range, ranges_on
from hasten.sample.order import cases_of
from hasten.sample.random import hash32, sample_key
from hasten.sample.share import WHOLE, Share, share_mistake

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
    share: Share = WHOLE
    """Of each batch, the samples that this program makes."""
    kernels: Kernels = NOTHING_COMPILED
    renderer: Any = render
    follower: Any = follow
    """On a GPU, compiled or not: of the stages up to the first that runs sample by sample, and of later ones."""
    compiled: bool = False
    why: str = "not asked for"
    compile_seconds: float = 0.0
    spans: bool = False
    """Whether stages run one by one under their names, for a profile, on a GPU too, where that costs what fusing them
    gained. On a host they do so whenever a profile is taken."""

    @property
    def device(self) -> torch.device:
        return self.seed.device

    def __call__(self, step: int) -> Batch:
        """(B, C, *S) by key: samples step * B ... step * B + B - 1 of the stream, or a rank's share of them."""
        return next(self.batches(step, step + 1))

    def shared(self, share: Share) -> ChainProgram:
        """The same program for one rank of several. Raises ValueError for a batch that can't be dealt among them.

        Operations that mix the samples of a batch mix those of the share.
        """
        mistake = share_mistake(self.batch_size, share.pieces, share.size)
        if mistake:
            raise ValueError(mistake)
        return replace(self, share=share)

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1."""
        for draws in self.draws(first, last):
            yield self.rendered(draws)

    def draws(self, first: int, last: int) -> Iterator[Draws]:
        """What is drawn for these steps."""
        size, own = self.batch_size, self.share.count(self.batch_size)
        for begin in range(first, last, _STEPS_PER_DRAW):
            end = min(last, begin + _STEPS_PER_DRAW)
            with Range("draw"), torch.no_grad():
                sample = torch.arange(begin * size, end * size, device=self.seed.device)
                drawn = self.drawn(sample)
            for number in range(end - begin):
                yield part(drawn, number * own, own)

    def drawn(self, sample: Tensor) -> Draws:
        """The numbers of the given samples, or of the share of them. sample: (B,) int64 global numbers in a row."""
        crop, store = self.chain.crop, self.store
        repeats = 1 if crop is None else crop.num_samples
        # Samples of one case follow each other: as many items as they can touch are looked up, and repeated.
        item = torch.div(sample, repeats, rounding_mode="floor")
        items = item[0] + torch.arange(sample.shape[0] // repeats + 2, device=sample.device)
        case = self.train_cases[cases_of(self.seed, items, self.train_cases.shape[0])][item - item[0]]
        case, sample = self.share.cut(case, self.batch_size), self.share.cut(sample, self.batch_size)
        key = sample_key(self.seed, sample)
        if crop is None:
            start = torch.zeros(sample.shape[0], 3, dtype=torch.int64, device=sample.device)
        else:
            start = crop.start(hash32(key ^ _PATCH), case, store.shape[case], store.sets)
        return Draws(case, start, key, draw_stages(self.stages, key, store.channels, store.spatial_dims))

    def rendered(self, draws: Draws) -> Batch:
        """The batch of what was drawn."""
        batch: Batch = {}
        itemised = self.spans or (ranges_on() and self.seed.device.type != "cuda")
        with torch.no_grad():
            for first, last in self._segments(itemised):
                stages = self.stages[first:last]
                with Range(" | ".join(stage_name(stage) for stage in stages) if itemised else "render"):
                    own = draws._replace(stages=draws.stages[first:last])
                    batch = self._followed(first, last, batch, own) if first else self._read(last, own)
        return batch

    def _segments(self, itemised: bool) -> Iterator[tuple[int, int]]:
        """Which stages run together: all up to the next that runs sample by sample; for a profile, each kernel."""
        first = 0
        while first < len(self.stages):
            stage = self.stages[first]
            last = first + 1
            if itemised and isinstance(stage, Placed):
                last = first + self.kernels.fused.get(stage.position, (1, None))[0]
            elif not itemised and not _is_per_sample(stage):
                while last < len(self.stages) and not _is_per_sample(self.stages[last]):
                    last += 1
            yield first, last
            first = last

    def _read(self, last: int, draws: Draws) -> Batch:
        store, stages = self.store, self.stages[:last]
        cases = {
            key: Cases(store.values[key], store.shape, store.offset, store.channels[key]) for key in self.chain.keys
        }
        if self.seed.device.type != "cuda":
            return render_on_host(stages, cases, draws, store.spatial_dims, self.kernels)
        found: Batch = self.renderer(stages, cases, draws, store.spatial_dims)
        return found

    def _followed(self, first: int, last: int, batch: Batch, draws: Draws) -> Batch:
        stages, dims = self.stages[first:last], self.store.spatial_dims
        if _is_per_sample(stages[0]):
            assert isinstance(stages[0], Placed)
            return run_per_sample(stages[0], batch, draws.key)
        if self.seed.device.type != "cuda":
            return follow_on_host(stages, batch, draws.stages, dims, self.kernels, first=first)
        found: Batch = self.follower(stages, batch, draws.stages, dims)
        return found


def _is_per_sample(stage: Stage) -> bool:
    return isinstance(stage, Placed) and isinstance(stage.op, PerSample)


def make_chain_program(
    chain: Chain,
    store: Store,
    *,
    batch_size: int,
    seed: int = 0,
    train_cases: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    compile: bool = False,
    cache_dir: Path | None = None,
    spans: bool = False,
) -> ChainProgram:
    """Bind a chain to data. store: on the host. Raises ValueError where the two do not fit, naming the operation.

    compile: the costly steps on the host, the whole program on a GPU; an absent or failing compiler leaves it eager,
    and `why` says so. cache_dir: of compiled kernels, in place of $HASTEN_CACHE.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; at least 1 is needed")
    if chain.crop is None:
        size = common_size(store)
    else:
        check_fits(store, chain.crop)
        store, size = with_sets(store, chain.crop), chain.crop.size
    moved = store.to(device)
    cases = range(len(store.ids)) if train_cases is None else train_cases
    program = ChainProgram(
        chain=chain, stages=stages_of(chain, size), store=moved, batch_size=batch_size, spans=spans,
        seed=torch.tensor(seed, dtype=torch.int64, device=moved.device),
        train_cases=torch.tensor(list(cases), device=moved.device),
    )  # fmt: skip
    return _compiled(program, cache_dir) if compile else program


def _compiled(program: ChainProgram, folder: Path | None) -> ChainProgram:
    if program.seed.device.type != "cuda":
        from hasten.augment.kernels import host_kernels

        built = host_kernels(program.stages, program.store, folder)
        return replace(
            program, kernels=built.kernels, compiled=built.compiled, why=built.why, compile_seconds=built.seconds
        )
    begin = time.perf_counter()
    for tensor in (*program.store.values.values(), program.store.shape, program.store.offset):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    options: dict[str, Any] = {"assert_indirect_indexing": False}
    renderer, follower = (
        torch.compile(each, fullgraph=True, dynamic=False, options=options) for each in (render, follow)
    )
    found = replace(program, renderer=renderer, follower=follower)
    try:
        with torch._dynamo.config.patch(recompile_limit=256):
            found(0)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        log.warning("the augmentation runs uncompiled: %s", reason)
        return replace(program, why=f"torch.compile failed: {reason}", compile_seconds=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    return replace(found, compiled=True, why=f"compiled in {seconds:.1f} s", compile_seconds=seconds)
