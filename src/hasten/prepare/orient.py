"""Reorients a volume to anatomical axis codes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from hasten.cases.types import is_flat

Permute = tuple[int, int, int]
Flip = tuple[bool, bool, bool]

UNCHANGED: tuple[Permute, Flip] = ((0, 1, 2), (False, False, False))


def orientation_of(
    affine: np.ndarray, codes: str | None, shape: tuple[int, int, int] | None = None
) -> tuple[Permute, Flip]:
    """How to turn an array to `codes`.

    `affine` is (4, 4), voxel (x, y, z) to mm. `codes` names the direction in which the x, y and z axis of the result
    increase, as in MONAI's Orientationd ("RAS"); None leaves the volume as it is. Returns `permute`, the source axis
    in (D, H, W) numbering that each oriented axis comes from, and `flip`, whether each oriented axis runs against its
    source axis. `shape` (D, H, W) is that of the source: where D is 1, the slice stays the plane H, W whatever
    its orientation, because 2-D is D = 1 everywhere; a slice across H or W is taken for one whose axes lie in that
    order, its own in front. Raises ValueError for an affine without three independent axes.
    """
    if shape is not None and is_flat(shape) and shape[0] > 1:
        across = shape.index(1)
        order = [across, *(axis for axis in range(3) if axis != across)]
        columns = [*(2 - axis for axis in reversed(order)), 3]
        permute, flip = orientation_of(affine[:, columns], codes, (1, shape[order[1]], shape[order[2]]))
        return (order[permute[0]], order[permute[1]], order[permute[2]]), flip
    if codes is None:
        return UNCHANGED
    source = io_orientation(affine)
    if np.isnan(source).any():
        raise ValueError(
            f"the affine {np.asarray(affine).tolist()} has no direction for one of its axes; correct the header, or "
            f"set prepare.orientation to null"
        )
    change = ornt_transform(source, axcodes2ornt(tuple(codes)))
    sources, turns = [0, 0, 0], [False, False, False]
    for axis, (target, sign) in enumerate(change):
        # nibabel numbers axes x, y, z; arrays here are z, y, x.
        sources[2 - int(target)] = 2 - axis
        turns[2 - int(target)] = bool(sign < 0)
    if shape is not None and shape[0] == 1 and sources[0] != 0:
        return UNCHANGED
    return (sources[0], sources[1], sources[2]), (turns[0], turns[1], turns[2])


def orient(array: np.ndarray, permute: Permute, flip: Flip) -> np.ndarray:
    """The oriented view of (..., D, H, W); nothing is copied."""
    lead = array.ndim - 3
    turned = array.transpose(*range(lead), *(lead + axis for axis in permute))
    return turned[_steps(flip)]


def unorient(array: np.ndarray, permute: Permute, flip: Flip) -> np.ndarray:
    """The inverse of `orient`, also a view of (..., D, H, W)."""
    lead = array.ndim - 3
    straight = array[_steps(flip)]
    return straight.transpose(*range(lead), *(lead + permute.index(axis) for axis in range(3)))


def _steps(flip: Flip) -> tuple[Any, ...]:
    return (..., *(slice(None, None, -1 if reverse else 1) for reverse in flip))
