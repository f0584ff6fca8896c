"""Label maps on the image's own voxels, decided from scores that are interpolated there and never held as a whole.

An interpolated score lies between those of the voxels around it. Where these voxels agree on the highest class, it is
the highest in between, too. So scores are interpolated only where they disagree: the same label map as from all
interpolated scores, for little more than nearest neighbour takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.config.schema import Spacing, Triple
from hasten.prepare.resample import linear_taps, nearest_index

_ANISOTROPY = 3.0
"""Largest spacing over the smallest from which on scores are not interpolated across slices, as in nnU-Net."""
_Slot = tuple[slice, slice, slice]
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
    """Of each output voxel along an axis: the source voxels that it lies between, and the weight of the upper one."""

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
        """Of output voxels first to last, with the source voxels counted from `start`."""
        low, high = self.low[first:last] - start, self.high[first:last] - start
        return Taps(low, high, self.weight[first:last], self.linear)


@dataclass(slots=True)
class _Layer:
    """Scores of some planes, the last plane of the layer before them first if there is one."""

    scores: Tensor
    """(K, planes, h, w) float32, the layers' axis first."""
    stop: int
    """Plane of the volume behind the last one."""
    missing: int
    """Voxels that are still to come."""


class Regridded:
    """A sink of scores (K, D, H, W) whose result is decided on another grid (D', H', W') that fills the same extent.

    The result is uint8 class index (int16 from 256 classes on), or with `overlapping` (K, D', H', W') bool. Scores wait
    for the rest of their layer along `axis`. A layer is decided as soon as it is complete, and then forgotten.
    """

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
        part: _Slot | None = None,
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
        self._before: Tensor | None = None
        self._next = self._done = 0
        """Planes of scores, and planes of the result, that are decided."""

    def room(self, slot: _Slot, like: Tensor) -> Tensor | None:
        return None

    def take(self, slot: _Slot, sums: Tensor, weights: Callable[[], Tensor]) -> None:
        along, *across = (
            slice(slot[axis].start - start, slot[axis].stop - start)
            for axis, start in zip(self._axes, self._start, strict=True)
        )
        layer = self._layers.get(along.start)
        if layer is None:
            planes = along.stop - along.start
            sides = [len(sums), planes + (along.start > 0), *self._shape[1:]]
            scores = torch.empty(sides, dtype=torch.float32, device=self._device)
            layer = _Layer(scores, along.stop, planes * self._shape[1] * self._shape[2])
            self._layers[along.start] = layer
        means = (sums / weights().to(sums.device)).permute(0, *(1 + axis for axis in self._axes))
        layer.scores[:, int(along.start > 0) :, across[0], across[1]] = means.to(self._device)
        layer.missing -= means[0].numel()
        while (complete := self._layers.get(self._next)) is not None and not complete.missing:
            self._decide(self._layers.pop(self._next))

    def result(self) -> Tensor:
        assert self._next == self._shape[0]
        return self._whole[0]

    def _decide(self, layer: _Layer) -> None:
        """The planes of the result that lie in this layer, or between it and the one before."""
        scores, start = layer.scores, self._next
        if self._before is not None:
            scores[:, :1] = self._before
            start -= 1
        self._before, self._next = scores[:, -1:].clone(), layer.stop
        along, *across = self._taps
        last = int(np.searchsorted(along.high, layer.stop))
        if last == self._done:
            return
        labels = scores > 0 if self._overlapping else scores.max(0, keepdim=True)[1]
        whole = labels.to(torch.uint8 if len(scores) < 256 else torch.int16)
        taps = [along.part(self._done, last, start), *across]
        decided = _decided(scores, whole, taps)
        decided = decided.bool() if self._overlapping else decided
        if self._planes is not None:
            for plane, all_scores in enumerate(_interpolated(scores, taps)):
                self._planes(self._axes[0], self._done + plane, all_scores, decided[:, plane])
        decided = decided if self._overlapping else decided[0]
        out = self._result(len(scores), decided.dtype).movedim(-3 + self._axes[0], -3)
        out[..., self._done : last, :, :] = decided
        self._done = last

    def _result(self, classes: int, dtype: torch.dtype) -> Tensor:
        if not self._whole:
            lead = [classes] if self._overlapping else []
            with torch.inference_mode(False):  # a result that its owner may change
                self._whole.append(torch.empty([*lead, *self._new_shape], dtype=dtype, device=self._device))
        d, h, w = self._place
        return self._whole[0][..., d, h, w]


def _decided(scores: Tensor, labels: Tensor, taps: Sequence[Taps]) -> Tensor:
    """(L, d', h', w') labels of the interpolated scores.

    scores: (K, d, h, w) float32. labels: (L, d, h, w), what is decided of each voxel: one class index, or K of 0 and 1.
    """
    unsure = 255 if labels.dtype == torch.uint8 else -1
    least, most = labels, labels
    for axis, each in enumerate(taps, start=1):
        if each.linear:
            sides = [(slice(None),) * axis + (part,) for part in (slice(None, -1), slice(1, None))]
            least = torch.minimum(*(least[side] for side in sides))
            most = torch.maximum(*(most[side] for side in sides))
    found = torch.where(least == most, least, unsure)
    for axis, each in enumerate(taps, start=1):
        # The last voxel lies in the last pair of source voxels; all others in the pair that their lower one begins.
        found = found.index_select(axis, _on(np.minimum(each.low, found.shape[axis] - 1), found.device))
    for plane, (low, high, weight) in enumerate(zip(taps[0].low, taps[0].high, taps[0].weight, strict=True)):
        open_ = (found[:, plane] == unsure).any(0)
        rows = open_.any(1).nonzero()[:, 0]
        if len(rows):
            between = scores[:, low] if low == high else torch.lerp(scores[:, low], scores[:, high], float(weight))
            _decide_plane(between, found[:, plane], open_, rows, taps[1], taps[2])
    return found


def _interpolated(scores: Tensor, taps: Sequence[Taps]) -> Iterator[Tensor]:
    """All scores of one plane (K, h', w') of the result after the other. scores: (K, d, h, w)."""
    for low, high, weight in zip(taps[0].low, taps[0].high, taps[0].weight, strict=True):
        plane = scores[:, low] if low == high else torch.lerp(scores[:, low], scores[:, high], float(weight))
        for axis, each in enumerate(taps[1:], start=1):
            plane = _between(plane, axis, _picked(each, torch.arange(len(each.low), device=scores.device)))
        yield plane


def _decide_plane(scores: Tensor, found: Tensor, open_: Tensor, rows: Tensor, height: Taps, width: Taps) -> None:
    """Decide the voxels `open_` (h', w') of a plane in place. scores: (K, h, w); found: (L, h', w').

    rows: those of h' that have such voxels. All scores of these rows are interpolated along h, and the voxels' own
    along w.
    """
    scores = _between(scores, 1, _picked(height, rows))
    row, column = open_[rows].nonzero(as_tuple=True)
    picked = _picked(width, column)
    first = row * scores.shape[2]
    values = _between(scores.flatten(1), 1, (first + picked[0], first + picked[1], picked[2]))
    labels = values.max(0, keepdim=True)[1] if len(found) == 1 < len(values) else values > 0
    found[:, rows[row], column] = labels.to(found.dtype)


_Picked = tuple[Tensor, Tensor, Tensor | None]
"""Lower and upper source voxel of some output voxels, and the weight of the upper one; None where they are the same."""


def _picked(taps: Taps, places: Tensor) -> _Picked:
    low, high, weight = (_on(each, places.device)[places] for each in (taps.low, taps.high, taps.weight))
    return low, high, weight if taps.linear else None


def _between(scores: Tensor, axis: int, picked: _Picked) -> Tensor:
    low, high, weight = picked
    below = scores.index_select(axis, low)
    if weight is None:
        return below
    return below.lerp_(scores.index_select(axis, high), weight.view(-1, *(1,) * (scores.ndim - axis - 1)))


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
