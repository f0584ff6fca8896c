"""Makes batches: a batch is a pure function of (cases, chain, seed, step).

Two halves. `draws` turns (seed, step) into a few numbers per sample; rendering turns those numbers and the cases into
voxels. They are separate because a compiler that sees both recomputes the draws for every voxel.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hasten.augment.chain import Batch, Chain, Stage, Warp, is_per_sample, stage_name
from hasten.augment.draw import Draws, draw_stages, part
from hasten.augment.host import follow_on_host, render_on_host
from hasten.augment.read import PackedCases, samples_as_cases
from hasten.augment.render import follow, render
from hasten.augment.whole_cases import WholeCases, run_per_sample
from hasten.cache.arena import Pages, Store
from hasten.devices import kind_of
from hasten.observe.ranges import Range, ranges_on
from hasten.sample.order import CaseOrder
from hasten.sample.patch_stages import DealingRounds, PatchStage, cut_by_stage, stage_at
from hasten.sample.random import hash32, sample_key
from hasten.sample.share import WHOLE, Share

_STEPS_PER_DRAW = 32
"""Drawing takes some hundreds of small operations for any number of samples, so several steps are drawn together."""
_PATCH = 0x2C1B
"""Salt of the words that a crop is keyed by, so that operations after it never share them."""


class DrawnBatch(NamedTuple):
    """The part of a batch that is made where the cases are."""

    draws: Draws
    batch: Batch
    """(B, C, *S) by key, as the source left it."""
    per_case: Batch
    """(B, ...) by key: the value of each sample's case."""


@dataclass(frozen=True, slots=True)
class ResidentSource:
    """All cases lie on the device of the batches, which reads them and runs every stage. See `HostSource`."""

    host = prepared_on_host = False

    def begin(self, segment: Segment, draws: Draws) -> DrawnBatch:
        return DrawnBatch(draws, {}, segment.per_case(draws))

    def finish(self, segment: Segment, draws: Draws, batch: Batch) -> Batch:
        return segment.run(range(len(segment.stages)), draws, cases=segment.stored())


@dataclass(frozen=True, slots=True)
class HostSource:
    """The cases lie on the host, which runs the first stages."""

    stages: int
    """Number of stages that run there; with 0 whole samples go to the device."""
    whole_cases: WholeCases | None = None
    """Transforms that run on whole cases, sample by sample, before the stages."""
    prepared_on_host: bool = True
    """Whether the device of the batches is another one, so that any thread may `begin` them on the host."""
    host = True
    """Whether the host has a part in every batch."""

    def begin(self, segment: Segment, draws: Draws) -> DrawnBatch:
        """The part that is made where the cases are, with the draws as `finish` needs them."""
        # 1. The samples, where a stage does not cut them out of their cases: made by the transforms, or whole cases.
        samples: Batch | None = None
        if self.whole_cases is not None:
            samples, per_case = self.whole_cases.batch(draws.sample.tolist())
        else:
            per_case = segment.per_case(draws)
            if self.stages == 0:
                samples = {key: _whole(each, draws.case) for key, each in segment.stored().items()}
        # 2. The stages that run here. Such samples are cases of their own, which the first stage reads where it runs.
        if samples is None:
            return DrawnBatch(draws, segment.run(range(self.stages), draws, cases=segment.stored()), per_case)
        rows = torch.arange(draws.case.shape[0], device=draws.case.device)
        draws = draws._replace(case=rows, start=torch.zeros_like(draws.start))
        if self.stages > 0:
            samples = segment.run(range(self.stages), draws, cases=samples_as_cases(samples)[0])
        return DrawnBatch(draws, samples, per_case)

    def finish(self, segment: Segment, draws: Draws, batch: Batch) -> Batch:
        """The batch (B, C, *S) by key, from what `begin` made."""
        if self.stages == 0:
            return segment.transformed(batch, draws)
        return segment.run(range(self.stages, len(segment.stages)), draws, batch=batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Batches of one shape from one set of cases: batch n holds samples n * B ... n * B + B - 1 of the stream.

    A batch takes three steps: numbers are drawn (`draws`), its source begins it where the cases are (`prepare`), and
    the device finishes it (`finish`).
    """

    chain: Chain
    stages: tuple[Stage, ...]
    store: Store
    """All cases, on the device that numbers are drawn on; for transforms on whole cases, an example of their output."""
    device: torch.device
    """The device of the batches."""
    batch_size: int
    seed: Tensor
    """() int64, on the store's device."""
    order: CaseOrder
    share: Share = WHOLE
    """The samples of each batch that this rank makes."""
    source: ResidentSource | HostSource
    """Where the samples come from, and so which stages of the chain run where."""
    num_samples: int = 1
    """Samples in a row that come from one case."""
    pages: Pages | None = None
    """Pages to read ahead, where cases lie on the disk."""
    renderer: Any = render
    """Runs the stages on a GPU, up to the first that runs sample by sample."""
    spans: bool = False
    """Whether stages run separately under their names, for a profile, on a GPU too, where that loses the gain of fusing
    them. On a host they do so whenever a profile is taken."""

    @property
    def warp(self) -> Warp:
        """The first stage, which reads the cases."""
        first = self.stages[0]
        assert isinstance(first, Warp)
        return first

    @property
    def prepared_on_host(self) -> bool:
        """Whether batches are begun on the host, and finished on another device."""
        return self.source.prepared_on_host

    @property
    def why_not_captured(self) -> str | None:
        """Why a batch can't be part of a CUDA graph."""
        if self.source.host:
            return "the prepared cases do not all lie on the device, so that batches come from the host"
        if any(is_per_sample(stage) for stage in self.stages):
            return "a transform of the augmentation runs sample by sample on the host"
        return None

    def __call__(self, number: int) -> Batch:
        """(B, C, *S) by key: the batch of that number, or a rank's share of it."""
        return next(self.batches(number, number + 1))

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Batches `first` ... `last` - 1, made in line."""
        return map(self.rendered, self.draws(first, last))

    def prepare(self, first: int, last: int) -> Generator[DrawnBatch, None, None]:
        """The parts of batches `first` ... `last` - 1 that are made where the cases are."""
        return (self.source.begin(self, draws) for draws in self.draws(first, last))

    def rendered(self, draws: Draws) -> Batch:
        """The batch of these draws, (B, C, *S) by key, made in line."""
        prepared = self.source.begin(self, draws)
        if self.prepared_on_host:
            prepared = pytree.tree_map(lambda value: value.to(self.device), prepared)
        return self.finish(prepared)

    def per_case(self, draws: Draws) -> Batch:
        """(B, ...) by key: the values that go with each sample's case."""
        return {key: each[draws.case] for key, each in self.store.per_case.items()}

    def finish(self, prepared: DrawnBatch) -> Batch:
        """The batch (B, C, *S) by key, from the result of `prepare`, once that is on the device."""
        return self.source.finish(self, prepared.draws, prepared.batch) | prepared.per_case

    def transformed(self, samples: Batch, draws: Draws) -> Batch:
        """Samples (B, C, *S) by key that are no cases of this segment's, after all stages."""
        return self.run(range(len(self.stages)), draws, cases=samples_as_cases(samples)[0])

    def draws(self, first: int, last: int) -> Iterator[Draws]:
        """The draws of these batches; the next one's cases are requested from the disk before one is yielded."""
        size, count = self.batch_size, self.share.count(self.batch_size)
        for begin in range(first, last, _STEPS_PER_DRAW):
            end = min(last, begin + _STEPS_PER_DRAW)
            with Range("draw"), torch.no_grad():
                drawn = self.drawn(torch.arange(begin * size, end * size, device=self.store.device))
            steps = [part(drawn, number * count, count) for number in range(end - begin)]
            for number, step in enumerate(steps):
                for each in steps[number + 1 : number + 2] if number else steps[:2]:
                    self._read_ahead(each)
                yield step

    def drawn(self, sample: Tensor) -> Draws:
        """The numbers of whole batches, or of the share of them. sample: (N * B,) int64 numbers in a row."""
        case, sample = self.order(sample), self.share.cut(sample, self.batch_size)
        return self.drawn_for(case, sample)

    def drawn_for(self, case: Tensor, sample: Tensor) -> Draws:
        """The numbers of samples of these cases. case, sample: (B,) int64 positions and numbers in the stream."""
        crop, store = self.chain.crop, self.store
        key = sample_key(self.seed, sample)
        if crop is None:
            start = torch.zeros(sample.shape[0], 3, dtype=torch.int64, device=sample.device)
        else:
            start = crop.start(hash32(key ^ _PATCH), case, store.shape[case], store.sets)
        return Draws(sample, case, start, key, draw_stages(self.stages, key, store.channels, store.spatial_dims))

    def _read_ahead(self, draws: Draws) -> None:
        """Read the boxes that these samples touch in the background, where cases lie on the disk."""
        if self.pages is None:
            return
        first = self.warp
        entering, leaving = (torch.tensor(size, dtype=torch.float32) for size in (first.size, first.out))
        affine = next(iter(draws.stages[0].values()))
        reach = (affine.linear.abs() * ((leaving - 1) / 2)).sum(2)
        centre = draws.start + (entering - 1) / 2 + affine.shift
        lows = torch.floor(centre - reach).to(torch.int64).tolist()
        highs = (torch.ceil(centre + reach).to(torch.int64) + 2).tolist()
        for case, low, high in zip(draws.case.tolist(), lows, highs, strict=True):
            self.pages.want(case, low, high)

    def stored(self) -> dict[str, PackedCases]:
        """The cases that the first stage reads, by key."""
        store = self.store
        return {
            key: PackedCases(store.values[key], store.shape, store.offset, store.channels[key])
            for key in self.chain.keys
        }

    @torch.no_grad()
    def run(
        self, span: range, draws: Draws, *, batch: Batch | None = None, cases: dict[str, PackedCases] | None = None
    ) -> Batch:
        """Stages of the chain: the first one reads `cases`, later ones continue with `batch`."""
        result, dims, on_gpu = batch or {}, self.store.spatial_dims, kind_of(draws.key.device).accelerator
        itemised = self.spans or (ranges_on() and not on_gpu)
        for first, last in self._groups(span, itemised):
            stages, numbers = self.stages[first:last], draws.stages[first:last]
            with Range(" | ".join(map(stage_name, stages)) if itemised else "render"):
                if first == 0:
                    here = draws._replace(stages=numbers)
                    if on_gpu:
                        result = self.renderer(stages, cases, here, dims)
                    else:
                        result = render_on_host(stages, cases or {}, here, dims)
                elif is_per_sample(stages[0]):
                    result = run_per_sample(stages[0], result, draws.key)
                elif on_gpu:
                    result = follow(stages, result, numbers, dims)
                else:
                    result = follow_on_host(stages, result, numbers, dims)
        return result

    def _groups(self, span: range, itemised: bool) -> Iterator[tuple[int, int]]:
        """Groups of stages that run together: all up to the next per-sample one; for a profile, each alone."""
        first = span.start
        while first < span.stop:
            last = first + 1
            if not itemised and not is_per_sample(self.stages[first]):
                while last < span.stop and not is_per_sample(self.stages[last]):
                    last += 1
            yield first, last
            first = last


def _whole(cases: PackedCases, case: Tensor) -> Tensor:
    """(B, C, D, H, W) of whole cases, which all have one size."""
    sides = cases.shape[0].tolist()
    return cases.values.view(-1, cases.channels, *sides)[case]


class Piece(NamedTuple):
    """Some batches of a segment."""

    segment: Segment
    first: int
    """First step, counted within the segment, not the run."""
    last: int


class Program:
    """`program(step)` returns the batch of that step, in any order of calls: (B, C, *S) by key on `device`.

    Segments make the steps: one for each patch size, and new ones where the cases are redealt. Only the segments of one
    round are kept.
    """

    def __init__(self, make: Callable[[int, PatchStage], Segment], rounds: DealingRounds, *, first: int = 0) -> None:
        """make: makes the segment of a round and a stage; called when a batch of that round is first requested, by all
        ranks at the same step, since cases may travel between them then. first: the step that the run begins with."""
        self.rounds, self._make = rounds, make
        self._round = rounds.at(first)
        self._segments: dict[PatchStage, Segment] = {}
        self._open(self._round)

    def _open(self, number: int) -> dict[PatchStage, Segment]:
        """The segments of a round. Those of another one, and their memory, are released first."""
        if number != self._round or not self._segments:
            self._segments = {}
            self._round, self._segments = number, {stage: self._make(number, stage) for stage in self.rounds.stages}
        return self._segments

    @property
    def segment(self) -> Segment | None:
        """The one that makes every batch; None where patches grow or cases are redealt."""
        return self.latest if len(self.rounds.stages) == 1 and not self.rounds.samples else None

    @property
    def latest(self) -> Segment:
        """The segment of the last stage, in the round that was requested last."""
        return self._segments[self.rounds.stages[-1]]

    @property
    def device(self) -> torch.device:
        return self.latest.device

    def stage(self, step: int) -> PatchStage:
        """The stage of a step; steps after the last stage have its shape."""
        return stage_at(self.rounds.stages, step)

    def samples(self, first: int, last: int) -> int:
        """Samples in steps `first` ... `last` - 1, of all ranks."""
        cut = cut_by_stage(self.rounds.stages, first, last)
        return sum((end - begin) * stage.batch_size for stage, begin, end in cut)

    def pieces(self, first: int, last: int) -> Generator[Piece, None, None]:
        """Steps `first` ... `last` - 1, cut where the round or the shape changes. A round is opened when it begins."""
        for number, begin, end in self.rounds.cut(first, last):
            for stage, one, other in cut_by_stage(self.rounds.stages, begin, end):
                yield Piece(self._open(number)[stage], one + stage.ahead, other + stage.ahead)

    def __call__(self, step: int) -> Batch:
        """Samples (step + ahead) * B ... of the stream, B being the batch size of the step's stage, or their share."""
        return next(self.batches(step, step + 1))

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1, made in line; each is the same whatever the first one was."""
        for piece in self.pieces(first, last):
            yield from piece.segment.batches(piece.first, piece.last)
            del piece  # or this round's cases would still be in memory with the next one's
