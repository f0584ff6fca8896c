"""A network over volumes of any size, by overlapping windows: batches are filled with the windows of any of them.

Where the scores of all of a volume need too much memory, it goes band by band: a band is a part of the cross section
over the whole length, along the axis with the most windows. Windows across a border are run for both bands, so that
results are the same; there are only as many bands as memory requires.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from hasten.config.schema import Triple
from hasten.devices import empty_cache, free_bytes, kind_of
from hasten.prediction.canvas import (
    HOST,
    Axis,
    Box,
    Canvas,
    Mode,
    Sigma,
    Sink,
    make_axis,
    restricted,
    weight_map,
    window_starts,
)
from hasten.runtime.out_of_memory import out_of_memory, out_of_memory_ends_block

log = logging.getLogger(__name__)

_MOST_WAITING = 64
"""Windows after which a batch is run, however few of them need the network."""
_HOST_VOXELS = 2**20
"""A CPU gains nothing from a batch of more voxels, and pays for its activations in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """How windows lie on a volume, and how their scores are blended."""

    window: Triple
    overlap: float | tuple[float, float, float]
    """Share of a window's side that the next one covers again, at least 0 and below 1, of all axes or each."""
    batch_size: int
    """Windows at once, at most: fewer on a CPU, where windows are large, and after running out of memory."""
    least: int = 1
    """Windows at once on a CPU, however large. torch has slower convolutions for a single image of few channels."""
    device: torch.device
    """Device on which windows go through the network and are summed."""
    mode: Mode = "gaussian"
    sigma: Sigma = (0.125, 0.125, 0.125)
    sums: torch.dtype = torch.float32
    """Type of the sums. float16 halves them; at an overlap of a half, scores are off by about a thousandth of the
    largest (bfloat16: a hundredth), and by more where more windows meet."""
    sums_device: torch.device | None = None
    """Device that holds the sums; None is `device`."""
    dtype: torch.dtype = torch.float32
    """Type of the network's input."""
    padding_mode: str = "constant"
    """Padding of a volume smaller than a window, as `torch.nn.functional.pad` names it."""
    padding_value: float = 0.0
    reuse_constant: bool = False
    """Whether scores of a window without contrast, as of air, are those of the last one with the same value. Where the
    network's answer depends on nothing but the window."""

    @property
    def overlaps(self) -> tuple[float, float, float]:
        """`overlap` along each axis."""
        each = self.overlap
        return each if isinstance(each, tuple) else (each, each, each)


Forward = Callable[[Tensor], Tensor]
"""(B, C, d, h, w) windows to (B, K, d, h, w) scores."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A window that waits for its batch."""

    volume: int
    image: Tensor
    canvas: Canvas
    window: Triple
    constant: bool = False
    """Whether all voxels of each channel are equal."""
    known: bool = False
    """Whether they also equal those of the last constant window, so that its scores are the same."""


def slide(
    forward: Forward,
    volumes: Iterable[Tensor],
    windows: Windows,
    sink: Callable[[int, Triple], Sink],
    tick: Callable[[int], None] | None = None,
    within: Callable[[int], Box] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield (position in `volumes`, the sink's result) of each volume as soon as its last window is through.

    volumes: (C, D, H, W) each, of any size, float dtype and device, with the same C. sink: makes one for a volume of a
    position and size. tick: called with the number of windows done, after each batch. within: the voxels of a volume
    that its sink gets; windows that meet none of them are left out. What runs out of memory is done again: with half
    the windows, at last with sums on the host. Raises ValueError where scores have not the windows' size.
    """
    batcher = _Batcher(forward, windows, tick)
    weight = weight_map(windows.window, windows.mode, windows.sigma, windows.device)
    waiting: list[_Job] = []
    last: Tensor | None = None
    for number, volume in enumerate(volumes):
        axes = _axes(volume_shape(volume), windows)
        if within is not None:
            axes = [*map(restricted, axes, windows.window, within(number))]
        device = windows.sums_device or windows.device
        canvas = Canvas(axes, weight, sink(number, volume_shape(volume)), windows.sums, device)
        image = _padded(volume, axes, windows)
        for window in canvas.windows():
            value = _constant(volume, canvas.place(window), axes) if windows.reuse_constant else None
            known = value is not None and last is not None and torch.equal(value, last)
            waiting.append(_Job(number, image, canvas, window, value is not None, known))
            last = last if value is None else value
            if sum(not job.known for job in waiting) >= batcher.size or len(waiting) >= _MOST_WAITING:
                yield from batcher.run(waiting)
                waiting = []
    yield from batcher.run(waiting)


def count_windows(shape: Triple, windows: Windows) -> int:
    """Windows on a volume of a size."""
    return prod(len(axis.starts) for axis in _axes(shape, windows))


def slow_axis(shape: Triple, windows: Windows) -> int:
    """The axis with the most windows on a volume of a size, along which their number changes last."""
    counts = [len(axis.starts) for axis in _axes(shape, windows)]
    return counts.index(max(counts))


def _axes(shape: Triple, windows: Windows) -> list[Axis]:
    return [*map(make_axis, shape, windows.window, windows.overlaps)]


def volume_shape(volume: Tensor) -> Triple:
    """(D, H, W) of (C, D, H, W)."""
    return volume.shape[1], volume.shape[2], volume.shape[3]


def _padded(volume: Tensor, axes: Sequence[Axis], windows: Windows) -> Tensor:
    """The volume with its padding, on the windows' device if that has room. Without padding nothing is copied there."""
    volume = _moved(volume, windows.device)
    if volume_shape(volume) == tuple(axis.size for axis in axes):
        return volume
    sides = reversed(list(zip(axes, volume_shape(volume), strict=True)))
    pad = [amount for axis, side in sides for amount in (axis.before, axis.size - side - axis.before)]
    value = windows.padding_value if windows.padding_mode == "constant" else None
    return functional.pad(volume.to(windows.dtype), pad, mode=windows.padding_mode, value=value)


def _constant(volume: Tensor, slot: Box, axes: Sequence[Axis]) -> Tensor | None:
    """The value of each channel where a window is constant. Asked of the host's volumes without padding alone, as the
    answer of another device would be waited for.
    """
    if volume.device != HOST or volume_shape(volume) != tuple(axis.size for axis in axes):
        return None
    inside = volume[(slice(None), *slot)]
    first = inside[:, :1, :1, :1]
    # A few voxels rule out nearly all windows.
    for part in (inside[:, ::7, ::7, ::7], inside):
        if not torch.equal(part, first.expand_as(part)):
            return None
    return first


def _moved(volume: Tensor, device: torch.device) -> Tensor:
    with out_of_memory_ends_block():
        return volume.to(device)
    log.warning("out of memory on %s; a volume stays where it is, and its windows are sent one by one", device)
    return volume


class _Batcher:
    """Runs windows in batches that fit."""

    def __init__(self, forward: Forward, windows: Windows, tick: Callable[[int], None] | None) -> None:
        self._forward, self._windows, self._tick = forward, windows, tick
        most = max(windows.least, _HOST_VOXELS // prod(windows.window))
        self.size = min(windows.batch_size, most) if windows.device.type == "cpu" else windows.batch_size
        self._constant: Tensor | None = None

    def run(self, jobs: list[_Job]) -> Iterator[tuple[int, Tensor]]:
        """Yield what becomes complete."""
        first = 0
        while first < len(jobs):
            unknown = [number for number, job in enumerate(jobs) if number >= first and not job.known]
            batch = jobs[first : unknown[self.size]] if len(unknown) > self.size else jobs[first:]
            new = [jobs[number] for number in unknown[: self.size]]
            scores: Iterable[Tensor] | None = self._scores(new) if new else ()
            if scores is None:
                self._shrink(new)
                continue
            first += len(batch)
            complete, rest = [], iter(scores)
            for job in batch:
                score = self._constant if job.known else next(rest)
                assert score is not None
                if job.constant and not job.known:
                    self._constant = score.clone()
                job.canvas.add(job.window, score)
                if job.canvas.done:
                    complete.append((job.volume, job.canvas.sink.result()))
            del scores, score, rest  # or they would be held through the next forward pass
            if self._tick:
                self._tick(len(batch))
            yield from complete

    def _scores(self, jobs: list[_Job]) -> Tensor | None:
        """(B, K, d, h, w), or None where memory ran out."""
        try:
            channels, window = len(jobs[0].image), self._windows.window
            batch = torch.empty(len(jobs), channels, *window, dtype=self._windows.dtype, device=self._windows.device)
            for target, job in zip(batch, jobs, strict=True):
                target.copy_(job.image[(slice(None), *job.canvas.place(job.window))])
            scores = self._forward(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or (len(jobs) == 1 and all(job.canvas.device == HOST for job in jobs)):
                raise
            return None
        if scores.shape[2:] != window:
            raise ValueError(
                f"the network gave scores of size {tuple(scores.shape[2:])} for windows of {window}; sliding windows "
                "need a network that keeps the size: resize its output, or choose a window it takes"
            )
        return scores

    def _shrink(self, jobs: list[_Job]) -> None:
        if len(jobs) > 1:
            self.size = len(jobs) // 2
            log.warning("out of memory with %d windows at once; going on with %d", len(jobs), self.size)
        else:
            jobs[0].canvas.to_host()
        empty_cache()


_FEW_PLANES = 4
"""Additional planes of scores needed to decide a layer."""


def bands(shape: Triple, windows: Windows, classes: int, budget: int, *, halo: int) -> list[Box]:
    """Boxes that cover a volume of (D, H, W) voxels, the fewest whose scores fit into the budget; the most if none do.

    budget: bytes. halo: voxels behind a border that its band needs, too, 1 where scores are interpolated (and wait for
    whole layers), else 0. classes: 0 if unknown gives one box.
    """
    slow = slow_axis(shape, windows)
    splits = [
        [[slice(0, shape[axis])]]
        if axis == slow
        else _splits(shape[axis], windows.window[axis], windows.overlaps[axis])
        for axis in range(3)
    ]
    parts: tuple[list[slice], ...] = ()
    for parts in sorted(product(*splits), key=lambda each: prod(map(len, each))):
        depth, height, width = (
            min(max(each.stop - each.start for each in of_axis) + halo, side)
            for of_axis, side in zip(parts, shape, strict=True)
        )
        if _bytes(shape, windows, classes, slow, halo, (depth, height, width)) <= budget:
            break
    return [*product(*parts)]


def widened(box: Box, shape: Triple) -> Box:
    """`box` with one voxel more behind each side, as far as there are any."""
    return tuple(slice(part.start, min(part.stop + 1, side)) for part, side in zip(box, shape, strict=True))


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if not kind_of(device).memory_stats:
        return free_bytes(device)
    memory = torch.get_device_module(device)
    return free_bytes(device) + int(memory.memory_reserved(device) - memory.memory_allocated(device))


def _splits(side: int, window: int, overlap: float) -> list[list[slice]]:
    """A side in 1, 2, 3, ... similar parts, cut where windows begin."""
    starts = window_starts(max(side, window), window, overlap)
    splits = []
    for count in range(1, len(starts) + 1):
        ideal = (side * number / count for number in range(1, count))
        cuts = sorted({0, side, *(min(starts, key=lambda start: abs(start - at)) for at in ideal)})
        splits.append([slice(first, last) for first, last in pairwise(cuts)])
    return splits


def _bytes(shape: Triple, windows: Windows, classes: int, slow: int, halo: int, box: Triple) -> int:
    """Peak memory in bytes of the scores of a box of a volume, of a layer as far as it is filled."""
    starts = window_starts(max(shape[slow], windows.window[slow]), windows.window[slow], windows.overlaps[slow])
    steps = [later - start for start, later in pairwise(starts)]
    planes = min(windows.window[slow], box[slow])
    waiting = max(0, planes - min(steps)) if steps else 0
    across = [axis for axis in range(3) if axis != slow]
    section = prod(box[axis] for axis in across)
    rows = max(section // box[axis] * min(windows.window[axis], box[axis]) for axis in across)
    sum_bytes = windows.sums.itemsize * (waiting * section + (planes - waiting) * rows)
    layers = 4 * section * (planes - waiting + _FEW_PLANES) if halo else 0
    return classes * (sum_bytes + layers)
