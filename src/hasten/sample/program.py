"""The batch program: a batch as a pure function of (arena, seed, step).

Two halves. `draw` turns (seed, step) into a few numbers per sample; `render` turns those numbers and the arena into
voxels. They are apart because a compiler that sees both recomputes the draws for every voxel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hasten.cache.arena import Tables
from hasten.cache.pages import Pages
from hasten.observe.ranges import Range
from hasten.sample.ahead import read_ahead
from hasten.sample.crop import crop_start
from hasten.sample.dealt import Dealt, PartOrders, part_orders
from hasten.sample.gather import gather_image, gather_label
from hasten.sample.geometry import affine_matrix, source_coordinates
from hasten.sample.host import render_on_host
from hasten.sample.intensity import Intensity, augment_intensity, draw_intensity
from hasten.sample.order import cases_of
from hasten.sample.random import sample_key
from hasten.sample.share import WHOLE, Share, share_mistake
from hasten.sample.types import BatchSpec, Draw

log = logging.getLogger(__name__)

Batch = tuple[Tensor, Tensor]
"""Image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8."""
Render = Callable[[BatchSpec, Tables, Draw], Batch]

_STEPS_PER_DRAW = 32
"""Drawing is some two hundred small operations whatever the number of samples, so steps are drawn together."""


def draw(
    spec: BatchSpec,
    tables: Tables,
    train_cases: Tensor,
    seed: Tensor,
    sample: Tensor,
    *,
    share: Share = WHOLE,
    orders: PartOrders | None = None,
) -> Draw:
    """The numbers of the given samples of the stream that `seed` names, or of a rank's share of them.

    train_cases: (n,) int64 positions in the arena; seed: () int64; sample: (B,) int64 global sample numbers in a row,
    of whole batches where there is a share or `orders`, which then decide the cases.
    """
    size = spec.sample.batch_size
    assert spec.sample.patch is not None
    assert size is not None
    if orders is None:
        case = share.cut(train_cases[cases_of(seed, sample, train_cases.shape[0])], size)
    else:
        case = orders.cases_of(sample, size, share.pieces)
    key = sample_key(seed, share.cut(sample, size))
    return Draw(
        case=case,
        key=key,
        start=crop_start(tables, case, key, spec.sample.patch, spec.sample.foreground_prob),
        matrix=affine_matrix(key, spec.sample, spec.spacing, spec.spatial_dims),
        intensity=draw_intensity(key, spec.sample),
    )


def part(drawn: Draw, first: int, count: int) -> Draw:
    """What was drawn for `count` samples from the `first` one on, in tensors of their own."""

    def cut(value: Tensor) -> Tensor:
        return value[first : first + count].clone()

    own = {field.name: cut(getattr(drawn.intensity, field.name)) for field in fields(Intensity)}
    return Draw(
        case=cut(drawn.case),
        key=cut(drawn.key),
        start=cut(drawn.start),
        matrix=cut(drawn.matrix),
        intensity=Intensity(**own),
    )


def render(spec: BatchSpec, tables: Tables, drawn: Draw) -> tuple[Tensor, Tensor]:
    """Image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8. Shapes are static and the host reads no value."""
    assert spec.sample.patch is not None
    coordinates = source_coordinates(drawn.matrix, spec.sample.patch)
    image = gather_image(tables, drawn.case, drawn.start, coordinates, spec.num_channels, spec.spatial_dims)
    label = gather_label(tables, drawn.case, drawn.start, coordinates)
    return augment_intensity(image, drawn.key, drawn.intensity, spec.sample), label


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchProgram:
    """`program(step)` gives the batch of that step. Everything it reads lies on one device."""

    spec: BatchSpec
    tables: Tables
    train_cases: Tensor
    """(n,) int64 positions in the arena that are trained on; of dealt cases, those of this rank."""
    seed: Tensor
    """() int64."""
    share: Share = WHOLE
    """Of each batch of `spec.sample.batch_size` samples, those that this program makes."""
    orders: PartOrders | None = None
    """Where the cases are dealt into parts."""
    render: Render = render
    pages: Pages | None = None
    """For reading ahead, where the tables are on the disk."""
    compiled: bool = False
    why: str = "not asked for"
    compile_seconds: float = 0.0

    def __call__(self, step: int) -> Batch:
        """Samples step * B ... step * B + B - 1 of the stream, or this rank's share of them."""
        return next(self.batches(step, step + 1))

    def drawn(self, sample: Tensor) -> Draw:
        """What is drawn for whole batches. sample: (N * B,) int64 global sample numbers in a row."""
        return draw(
            self.spec, self.tables, self.train_cases, self.seed, sample, share=self.share, orders=self.orders
        )  # fmt: skip

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of steps `first` ... `last` - 1; each is the same whatever the first one was."""
        for drawn in self.draws(first, last):
            with Range("render"), torch.no_grad():
                batch = self.render(self.spec, self.tables, drawn)
            yield batch

    def draws(self, first: int, last: int) -> Generator[Draw, None, None]:
        """What is drawn for these steps; the disk is asked for the next step's cases before one is given out."""
        size = self.spec.sample.batch_size
        assert size is not None
        for begin in range(first, last, _STEPS_PER_DRAW):
            end = min(last, begin + _STEPS_PER_DRAW)
            with Range("draw"), torch.no_grad():
                sample = torch.arange(begin * size, end * size, device=self.seed.device)
                drawn = self.drawn(sample)
            own = self.share.count(size)
            steps = [part(drawn, number * own, own) for number in range(end - begin)]
            self._ahead(steps[:1])
            for number, step in enumerate(steps):
                self._ahead(steps[number + 1 : number + 2])
                yield step

    def _ahead(self, steps: list[Draw]) -> None:
        assert self.spec.sample.patch is not None
        if self.pages is not None:
            for drawn in steps:
                read_ahead(self.pages, drawn, self.spec.sample.patch)


def make_program(
    spec: BatchSpec,
    tables: Tables,
    train_cases: tuple[int, ...] | Dealt,
    seed: int,
    *,
    compile: bool,
    pages: Pages | None = None,
    share: Share = WHOLE,
) -> BatchProgram:
    """The batch program on the device of `tables`. An absent or failing compiler leaves it eager, and `why` says so.

    train_cases: positions in the arena. The arena's length and number of cases are dynamic, so that one compiled
    kernel, which torch keeps on disk, serves every data set with the same patch and augmentation. share: what this
    rank makes of every batch. Raises ValueError for a batch that can't be dealt among the ranks.
    """
    device = tables.image.device
    given = torch.tensor(seed, dtype=torch.int64, device=device)
    parts = len(train_cases.parts) if isinstance(train_cases, Dealt) else 0
    mistake = share_mistake(spec.sample.batch_size or 1, share.pieces, share.size, parts)
    if mistake:
        raise ValueError(mistake)
    if isinstance(train_cases, Dealt):
        orders = part_orders(train_cases, given, share)
        cases = torch.cat(orders.cases)
    else:
        orders, cases = None, torch.tensor(train_cases, dtype=torch.int64, device=device)
    program = BatchProgram(
        spec=spec,
        tables=tables,
        train_cases=cases,
        seed=given,
        share=share,
        orders=orders,
        render=render if device.type == "cuda" else render_on_host,
        pages=pages,
    )
    return _compile(program) if compile else program


def _compile(program: BatchProgram) -> BatchProgram:
    begin = time.perf_counter()
    tables = program.tables
    for tensor in (tables.image, tables.label, tables.offset, tables.shape):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    # The indices are clamped by construction, so inductor's bounds check on each would be work for nothing.
    options: dict[str, str | int | bool | Callable] = {"assert_indirect_indexing": False}
    compiled = replace(program, render=torch.compile(render, fullgraph=True, dynamic=False, options=options))
    try:
        # Every program of the process compiles the same function; by default torch gives up at the ninth.
        with torch._dynamo.config.patch(recompile_limit=256):
            compiled(0)
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        log.warning("the batch program runs uncompiled: %s", reason)
        return replace(program, why=f"torch.compile failed: {reason}", compile_seconds=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    return replace(compiled, compiled=True, why=f"compiled in {seconds:.1f} s", compile_seconds=seconds)
