"""Label maps on the image's own voxels, from scores that are interpolated there piece by piece.

An interpolated score lies between those of the voxels around it. Where these voxels agree on the highest class, it is
the highest in between, too. So scores are interpolated only where they disagree: the same label map as from all
interpolated scores, for little more than nearest neighbour takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hasten.config.schema import Spacing, Triple
from hasten.prediction.canvas import Box, Sink
from hasten.prediction.scores import highest
from hasten.prepare.resample import linear_taps, nearest_index
from hasten.prepare.threads import one_torch_thread

_ANISOTROPY = 3.0
"""Largest spacing over the smallest from which on scores are not interpolated across slices, as in nnU-Net."""
_SLAB_VOXELS = 1 << 19
"""Number of source voxels that are processed together."""
Planes = Callable[[int, int, Tensor, Tensor], None]
"""Called with each plane of the result: its axis and number, all its interpolated scores (K, a, b), which may be
changed, and what is decided of them: (1, a, b) class index, or with overlapping classes (K, a, b) bool."""


def thick_axis(*spacings: Spacing) -> int | None:
    """The axis across thick slices, along which nnU-Net takes scores from the nearest slice; None without one.

    spacings: (D, H, W) in mm, of the prepared grid and of the image; the first that is anisotropic decides.
    """
    for spacing in spacings:
        if max(spacing) > _ANISOTROPY * min(spacing):
            thickest = [axis for axis in range(3) if spacing[axis] == max(spacing)]
            return thickest[0] if len(thickest) == 1 else None
    return None


@dataclass(frozen=True, slots=True)
class Taps:
    """Source voxels that each of n output voxels lies between along an axis, and the weight of the upper one.

    low, high: (n,) int64 source voxels. weight: (n,) float32 in [0, 1].
    """

    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray
    linear: bool
    """Whether scores are interpolated along this axis; otherwise `low` and `high` are the same voxel."""

    @classmethod
    def make(cls, size: int, new_size: int, *, nearest: bool) -> Taps:
        if size in (1, new_size) or nearest:
            index = nearest_index(size, new_size)
            return cls(index, index, np.zeros(new_size, np.float32), linear=False)
        return cls(*linear_taps(size, new_size), linear=True)

    def part(self, first: int, last: int, start: int) -> Taps:
        """The part for output voxels first to last, with the source voxels counted from `start`."""
        low, high = self.low[first:last] - start, self.high[first:last] - start
        return Taps(low, high, self.weight[first:last], self.linear)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Scores of one cell, with the layers' axis first."""

    place: Box
    """Voxels of the piece among those of the sink's part."""
    scores: Tensor
    """(K, a, b, c)."""

    def meets(self, first: int, stop: int) -> bool:
        return self.place[0].start < stop and self.place[0].stop > first

    def planes(self, first: int, stop: int) -> _Piece:
        """The part of the piece that lies in these planes, which are then counted from `first`."""
        along, row, column = self.place
        start, end = max(first, along.start), min(stop, along.stop)
        part = self.scores[:, start - along.start : end - along.start]
        return _Piece((slice(start - first, end - first), row, column), part)

    def last_plane(self) -> _Piece:
        """A copy, which holds none of the other planes' memory."""
        along, row, column = self.place
        return _Piece((slice(along.stop - 1, along.stop), row, column), self.scores[:, -1:].clone())


@dataclass(slots=True)
class _Layer:
    """Scores of some planes, the last plane of the layer before them first if there is one."""

    labels: Tensor
    """(L, planes, h, w), what is decided of each voxel: one class index, or K of 0 and 1."""
    pieces: list[_Piece]
    start: int
    stop: int
    """First plane of the part, and the one behind the last."""
    missing: int
    """Number of voxels still to come."""


class RegridSink(Sink):
    """A sink of scores (K, D, H, W) whose result is decided on another grid (D', H', W') that fills the same extent.

    The result is uint8 class index (int16 from 256 classes on), or with `overlapping` (K, D', H', W') bool. Scores wait
    for the rest of their layer along `axis`. A layer is decided as soon as it is complete, and then forgotten.
    """

    repeatable = False

    def __init__(
        self,
        shape: Triple,
        new_shape: Triple,
        device: torch.device,
        *,
        axis: int,
        nearest: int | None = None,
        overlapping: bool = False,
        planes: Planes | None = None,
        part: Box | None = None,
        whole: list[Tensor] | None = None,
    ) -> None:
        """shape: (D, H, W) of the scores. nearest: an axis along which scores are not interpolated.

        part: decide only what lies on these voxels or between them and the next ones, whose scores are given as well,
        all of a side along `axis`; without `planes`. whole: an empty list, which the sinks of all parts share for their
        result.
        """
        self._planes = planes
        self._axes = (axis, *(other for other in range(3) if other != axis))
        self._new_shape, self._device, self._overlapping = new_shape, device, overlapping
        self._whole = [] if whole is None else whole
        core = part or (slice(0, shape[0]), slice(0, shape[1]), slice(0, shape[2]))
        self._start = tuple(core[each].start for each in self._axes)
        self._shape = tuple(min(core[each].stop + 1, shape[each]) - core[each].start for each in self._axes)
        self._taps, self._place = list[Taps](), [slice(None)] * 3
        for each in self._axes:
            taps = Taps.make(shape[each], new_shape[each], nearest=each == nearest)
            first, last = (int(np.searchsorted(taps.low, end)) for end in (core[each].start, core[each].stop))
            self._taps.append(taps.part(first, last, core[each].start))
            self._place[each] = slice(first, last)
        self._layers: dict[int, _Layer] = {}
        self._before: tuple[Tensor, list[_Piece]] | None = None
        self._next = self._done = 0
        """Planes of scores, and planes of the result, that are decided."""

    def take(self, slot: Box, sums: Tensor, weights: Callable[[], Tensor]) -> None:
        """Implements `Sink.take`. The sums (K, d, h, w) are kept, as scores, so they must not change afterwards."""
        along, row, column = (
            slice(slot[axis].start - start, slot[axis].stop - start)
            for axis, start in zip(self._axes, self._start, strict=True)
        )
        existing = self._layers.get(along.start)
        layer = existing or self._layers.setdefault(along.start, self._layer(along, len(sums)))
        piece = _Piece((along, row, column), sums.permute(0, *(1 + axis for axis in self._axes)))
        # The weights are positive, so the sums decide as their means do.
        labels = piece.scores > 0 if self._overlapping else highest(piece.scores)[None]
        sums.div_(weights().to(sums.device))
        layer.labels[:, along.start - layer.start : along.stop - layer.start, row, column] = labels
        layer.pieces.append(piece)
        layer.missing -= labels[0].numel()
        # One thread: a step takes less than threads take to meet where others use the processor, as readers do.
        with one_torch_thread() if self._device.type == "cpu" else nullcontext():
            while (complete := self._layers.get(self._next)) is not None and not complete.missing:
                self._decide(self._layers.pop(self._next))

    def _layer(self, along: slice, classes: int) -> _Layer:
        planes, section = along.stop - along.start, self._shape[1:]
        start = along.start - (along.start > 0)
        lead = classes if self._overlapping else 1
        labels = torch.empty([lead, along.stop - start, *section], dtype=_dtype(classes), device=self._device)
        return _Layer(labels, [], start, along.stop, planes * section[0] * section[1])

    def result(self) -> Tensor:
        assert self._next == self._shape[0]
        return self._whole[0]

    def _decide(self, layer: _Layer) -> None:
        """The planes of the result that lie in this layer, or between it and the one before."""
        if self._before is not None:
            layer.labels[:, :1] = self._before[0]
            layer.pieces += self._before[1]
        # A few planes at once, so that all steps find them in the processor's cache.
        step = max(1, _SLAB_VOXELS // (self._shape[1] * self._shape[2]))
        for first in range(layer.start, max(layer.stop - 1, layer.start + 1), step):
            self._decide_slab(layer, first, min(first + step + 1, layer.stop))
        pieces = [piece.last_plane() for piece in layer.pieces if piece.place[0].stop == layer.stop]
        self._before, self._next = (layer.labels[:, -1:].clone(), pieces), layer.stop

    def _decide_slab(self, layer: _Layer, first: int, stop: int) -> None:
        along, *across = self._taps
        last = int(np.searchsorted(along.high, stop))
        if last == self._done:
            return
        taps = [along.part(self._done, last, first), *across]
        pieces = [piece.planes(first, stop) for piece in layer.pieces if piece.meets(first, stop)]
        classes = len(pieces[0].scores)
        out = self._result(classes).movedim(-3 + self._axes[0], -3)[..., self._done : last, :, :]
        out = out if self._overlapping else out[None]
        labels = layer.labels[:, first - layer.start : stop - layer.start]
        coarse, near = _certain(labels, taps)
        means = torch.empty(stop - first, *self._shape[1:], classes, dtype=torch.float32, device=self._device)
        for piece in pieces:
            target, scores = means[piece.place], piece.scores.movedim(0, -1)
            if self._planes is not None:
                target.copy_(scores)
            else:  # for 60 classes most of the time would go into the scores of voxels that agree
                at = near[piece.place].nonzero(as_tuple=True)
                target[at] = scores[*(each.to(scores.device) for each in at)].to(target)
        _decide(coarse, means, taps, out)
        if self._planes is not None:
            for plane, scores in enumerate(_interpolated(means.movedim(-1, 0), taps)):
                self._planes(self._axes[0], self._done + plane, scores, out[:, plane])
        self._done = last

    def _result(self, classes: int) -> Tensor:
        if not self._whole:
            lead, dtype = ([classes], torch.bool) if self._overlapping else ([], _dtype(classes))
            with torch.inference_mode(False):  # a result that its owner may change
                self._whole.append(torch.empty([*lead, *self._new_shape], dtype=dtype, device=self._device))
        d, h, w = self._place
        return self._whole[0][..., d, h, w]


def _dtype(classes: int) -> torch.dtype:
    """Integer type of labels, with one extra value, `_unsure`, for undecided ones."""
    return torch.uint8 if classes < 256 else torch.int16


def _unsure(labels: Tensor) -> int:
    return 255 if labels.dtype == torch.uint8 else -1


def _certain(labels: Tensor, taps: Sequence[Taps]) -> tuple[Tensor, Tensor]:
    """What voxels that agree decide between them, `_unsure` elsewhere; and (d, h, w) bool, whose scores decide there.

    labels: (L, d, h, w), what is decided of each voxel: one class index, or K of 0 and 1.
    """
    least, most = labels, labels
    for axis, each in enumerate(taps, start=1):
        if each.linear:
            pair = [(slice(None),) * axis + (part,) for part in (slice(None, -1), slice(1, None))]
            least = torch.minimum(*(least[side] for side in pair))
            most = torch.maximum(*(most[side] for side in pair))
    near = (least != most).any(0)
    for axis, each in enumerate(taps):
        if each.linear:
            blank = torch.zeros_like(near.narrow(axis, 0, 1))
            near = torch.cat([near, blank], axis) | torch.cat([blank, near], axis)
    return torch.where(least == most, least, _unsure(labels)), near


def _decide(coarse: Tensor, means: Tensor, taps: Sequence[Taps], out: Tensor) -> None:
    """Fill `out` (L, d', h', w') with the labels of the interpolated scores.

    coarse: as `_certain` gives it. means: (d, h, w, K) scores, of the voxels whose scores decide at least.
    """
    for axis, each in ((3, taps[2]), (2, taps[1])):
        # The last voxel lies in the last pair of source voxels; all others in the pair that their lower one begins.
        coarse = coarse.index_select(axis, _on(np.minimum(each.low, coarse.shape[axis] - 1), coarse.device))
    pairs = zip(taps[0].low.tolist(), taps[0].high.tolist(), strict=True)
    for (low, high), planes in groupby(enumerate(pairs), key=itemgetter(1)):
        cells = coarse[:, min(low, coarse.shape[1] - 1)]
        row, column = (cells == _unsure(cells)).any(0).nonzero(as_tuple=True)
        sides = dict.fromkeys((low, high) if len(row) else ())
        values = [_between(means, plane, row, column, taps[1], taps[2]) for plane in sides]
        for plane, _ in planes:
            out[:, plane] = cells
            if values:
                scores = torch.lerp(values[0], values[-1], float(taps[0].weight[plane]))
                decided = (scores > 0).T if out.dtype == torch.bool else scores.max(1)[1][None]
                out[:, plane, row, column] = decided.to(out.dtype)


def _between(means: Tensor, plane: int, row: Tensor, column: Tensor, height: Taps, width: Taps) -> Tensor:
    """(N, K) of scores (d, h, w, K) in a plane, interpolated at N voxels of h' and w'."""
    places = [torch.zeros_like(row)]
    shares = [torch.ones(len(row), device=row.device)]
    for taps, at, stride in ((height, row, means.shape[2]), (width, column, 1)):
        low, high, weight = _picked(taps, at)
        sides = [(low, None)] if weight is None else [(low, 1 - weight), (high, weight)]
        places = [place + stride * side for side, _ in sides for place in places]
        shares = [share if by is None else share * by for _, by in sides for share in shares]
    scores = means[plane].flatten(0, 1)
    return embedding_bag(torch.stack(places, 1), scores, mode="sum", per_sample_weights=torch.stack(shares, 1))


def _interpolated(scores: Tensor, taps: Sequence[Taps]) -> Iterator[Tensor]:
    """All scores of one plane (K, h', w') of the result after the other. scores: (K, d, h, w)."""
    for low, high, weight in zip(taps[0].low, taps[0].high, taps[0].weight, strict=True):
        plane = scores[:, low] if low == high else torch.lerp(scores[:, low], scores[:, high], float(weight))
        for axis, each in enumerate(taps[1:], start=1):
            lower, upper, share = _picked(each, torch.arange(len(each.low), device=scores.device))
            below = plane.index_select(axis, lower)
            if share is not None:
                below.lerp_(plane.index_select(axis, upper), share.view(-1, *(1,) * (2 - axis)))
            plane = below
        yield plane


def _picked(taps: Taps, places: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Lower and upper source voxel of some output voxels, the weight of the upper one; None if both are the same."""
    low, high, weight = (_on(each, places.device)[places] for each in (taps.low, taps.high, taps.weight))
    return low, high, weight if taps.linear else None


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
