"""Lowers MONAI's spatial transforms."""

from __future__ import annotations

from typing import Any

from hasten.augment.affine import Affine, Zoom
from hasten.augment.grid import AxisFlip, Cut, Flip, Resize, Rotate90
from hasten.augment.lower.crops import makes_whole
from hasten.augment.lower.types import (
    Context,
    Lowered,
    NotLowered,
    Undecided,
    build,
    check_all_keys,
    check_float,
    keys_of,
    modes_of,
    padding_of,
    pair,
    single,
    triple_of,
)
from hasten.config.schema import Triple

_GRID = {mode: mode for mode in ("zeros", "border", "reflection")}
_NUMPY = {"edge": "border", "replicate": "border", "constant": "zeros", "symmetric": "reflection"}
_SHIFTED = '"nearest" takes the voxel whose centre is nearest, MONAI\'s resizing the one before'

Ranges = tuple[tuple[float, float], ...]


def lower_geometry(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    import monai.transforms as mt

    match transform:
        case mt.RandFlipd():
            return single(transform, Flip, prob=transform.prob, spatial_axis=_axes(transform.flipper.spatial_axis))
        case mt.RandAxisFlipd():
            return single(transform, AxisFlip, prob=transform.prob)
        case mt.RandRotate90d():
            axes = tuple(map(int, transform.spatial_axes))
            return single(transform, Rotate90, prob=transform.prob, max_k=transform.max_k, spatial_axes=axes)
        case mt.RandRotated():
            return _rotated(transform, context)
        case mt.RandZoomd():
            return _zoomed(transform, context)
        case mt.RandAffined():
            return _affine(transform, context)
        case mt.Rand2DElasticd() | mt.Rand3DElasticd():
            raise NotLowered("deforms elastically, which Hasten leaves to MONAI")
        case mt.Flipd():
            return single(transform, Flip, prob=1.0, spatial_axis=_axes(transform.flipper.spatial_axis))
        case mt.Resized():
            return _resize(transform, context)
        case mt.CenterSpatialCropd():
            check_all_keys(transform, context, "crops")
            return _cut(transform, triple_of(transform, "roi_size", transform.cropper.roi_size, context), context)
        case mt.ResizeWithPadOrCropd():
            check_all_keys(transform, context, "changes the size")
            size = triple_of(transform, "spatial_size", transform.padder.padder.spatial_size, context)
            return _grown(transform, size, context) or _cut(transform, size, context)
        case mt.SpatialPadd():
            size = triple_of(transform, "spatial_size", transform.padder.spatial_size, context)
            return _grown(transform, size, context) or Lowered(note="the patch is no smaller than that")
        case mt.DivisiblePadd():
            return _divisible(transform, context)
    return None


def _rotated(transform: Any, context: Context) -> Lowered:
    inner = transform.rand_rotate
    if not inner.keep_size:
        raise NotLowered("gives patches of a size that depends on the angle (keep_size=False)")
    if any(transform.align_corners):
        raise NotLowered("has align_corners=True; Hasten turns voxels as squares, not as points")
    check_float(transform, transform.dtype)
    ranges = tuple(pair(getattr(inner, field), field) for field in ("range_x", "range_y", "range_z"))
    reading: dict[str, Any] = {"mode": modes_of(transform, context), "padding_mode": padding_of(transform, _GRID)}
    return single(transform, Affine, prob=transform.prob, rotate_range=ranges, **reading)


def _zoomed(transform: Any, context: Context) -> Lowered:
    inner = transform.rand_zoom
    if not inner.keep_size:
        raise NotLowered("gives patches of a size that depends on the zoom (keep_size=False)")
    if any(inner.kwargs.values()):
        raise NotLowered(f"has arguments for padding {inner.kwargs}")
    check_float(transform, transform.dtype)
    modes = modes_of(transform, context)
    linear = {bool(corners) for corners, mode in zip(transform.align_corners, modes, strict=True) if mode == "bilinear"}
    if len(linear) > 1:
        raise NotLowered("has align_corners both True and False; Hasten has one for all keys")
    note = _SHIFTED if "nearest" in modes else ""
    zoom = {name: tuple(map(float, getattr(inner, name))) for name in ("min_zoom", "max_zoom")}
    reading = {"align_corners": True in linear, "mode": modes, "padding_mode": padding_of(transform, _NUMPY)}
    return single(transform, Zoom, note, prob=transform.prob, **zoom, **reading)


def _affine(transform: Any, context: Context) -> Lowered:
    inner, keys = transform.rand_affine, keys_of(transform)
    grid = inner.rand_affine_grid
    modes, padding = modes_of(transform, context), padding_of(transform, _GRID)
    names = ("rotate_range", "shear_range", "translate_range", "scale_range")
    ranges = {name: _ranges(getattr(grid, name), name) for name in names}
    op = build(transform, Affine, keys=keys, prob=transform.prob, mode=modes, padding_mode=padding, **ranges)
    if inner.spatial_size is None:
        return Lowered(ops=(op,))
    sides = [inner.spatial_size] if isinstance(inner.spatial_size, int) else list(inner.spatial_size)
    given = any(side is not None and side > 0 for side in sides)
    if given and triple_of(transform, "spatial_size", inner.spatial_size, context) != context.size:
        raise NotLowered(f"gives another size than it gets (spatial_size={inner.spatial_size})")
    return Lowered(ops=(op,))


def _ranges(values: Any, field: str) -> Ranges:
    """Ranges as RandAffineGrid reads them: a number r stands for (-r, r), None for nothing at all."""
    ranges = []
    for value in values:
        if value is None:
            continue
        ranges.append((-abs(float(value)), abs(float(value))) if isinstance(value, int | float) else pair(value, field))
    return tuple(ranges)


def _resize(transform: Any, context: Context) -> Lowered:
    inner = transform.resizer
    if inner.size_mode != "all":
        raise NotLowered(f"has size_mode={inner.size_mode}, so that sizes depend on the case")
    if any(transform.align_corners) or any(transform.anti_aliasing):
        raise NotLowered("has align_corners or anti_aliasing")
    check_float(transform, transform.dtype)
    check_all_keys(transform, context, "resizes")
    size = triple_of(transform, "spatial_size", inner.spatial_size, context)
    if size == context.size:
        return Lowered(note="the patch has that size")
    modes = modes_of(transform, context)
    note = _SHIFTED if "nearest" in modes else ""
    return single(transform, Resize, note, spatial_size=size[3 - context.dims :], mode=modes)


def _cut(transform: Any, size: Triple, context: Context) -> Lowered:
    if context.size is not None and all(target >= side for target, side in zip(size, context.size, strict=True)):
        return Lowered(note="the patch is no larger than that")
    return single(transform, Cut, "what it cuts away is never computed", size=size)


def _grown(transform: Any, size: Triple, context: Context) -> Lowered | None:
    """None if nothing is padded. Raises NotLowered if something is, or may be."""
    if context.size is None:
        raise Undecided("pads depending on the size of the items, which is known only when data are bound")
    if all(target <= side for target, side in zip(size, context.size, strict=True)):
        whole = size == context.size and makes_whole(transform, size, context)
        return Lowered(note="the patch is whole already") if whole else None
    raise NotLowered(f"pads from {context.size[3 - context.dims :]} to {size[3 - context.dims :]}")


def _divisible(transform: Any, context: Context) -> Lowered:
    if context.size is None:
        raise Undecided("pads depending on the size of the items, which is known only when data are bound")
    factor = transform.padder.k
    factors = (factor,) * context.dims if isinstance(factor, int) else tuple(factor)
    if any(k > 0 and side % k for k, side in zip(factors, context.size[3 - context.dims :], strict=False)):
        raise NotLowered(f"pads {context.size[3 - context.dims :]} to a multiple of {factor}")
    return Lowered(note="the patch can be divided already")


def _axes(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    return (int(value),) if isinstance(value, int) else tuple(int(axis) for axis in value)
