"""Lowers MONAI's random crops."""

from __future__ import annotations

from typing import Any

from hasten.augment.crop import CentreCrop, CropByLabelClasses, CropByPosNegLabel, CropOp, SpatialCrop
from hasten.augment.grid import Cut
from hasten.augment.lower.types import Context, Lowered, NotLowered, build, check_all_keys, keys_of, single, triple_of
from hasten.config.schema import Triple

_PADDED = "cases smaller than the patch lie in zeros, where MONAI gives a smaller patch"
_LATE = "is not the first random transform, so that it crops what was changed already"


def lower_crop(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    import monai.transforms as mt

    match transform:
        case mt.RandCropByPosNegLabeld():
            return _pos_neg(transform, context)
        case mt.RandCropByLabelClassesd():
            return _classes(transform, context)
        case mt.RandSpatialCropSamplesd():
            _check_opening(transform, context)
            return _spatial(transform, transform.cropper.cropper, transform.cropper.num_samples, context)
        case mt.RandSpatialCropd():
            return _spatial(transform, transform.cropper, 1, context)
        case mt.RandScaleCropd():
            raise NotLowered("takes its patch as a share of each case, so that patches differ in size")
    return None


def is_random_crop(transform: Any) -> bool:
    """Whether whole cases go in and patches come out, one or several."""
    import monai.transforms as mt

    kinds = (
        "RandCrop RandCropByPosNegLabel RandCropByLabelClasses RandWeightedCrop RandSpatialCropSamples RandGridPatch"
    )
    return isinstance(transform, tuple(getattr(mt, f"{kind}d") for kind in kinds.split()))


def _check_opening(transform: Any, context: Context) -> None:
    if not context.opening:
        raise NotLowered(_LATE)
    check_all_keys(transform, context, "crops")


def _centred(transform: Any, kind: Any, context: Context, *notes: str, **fields: Any) -> Lowered:
    _check_opening(transform, context)
    cropper = transform.cropper
    size = triple_of(transform, "spatial_size", cropper.spatial_size, context)
    smaller = getattr(cropper, "allow_smaller", False)
    fields |= {"keys": keys_of(transform), "num_samples": cropper.num_samples, "pad": _pads(smaller, size, context)}
    return _lowered_crop(build(transform, kind, size=size, **fields), *notes, _PADDED if smaller else "")


def _pos_neg(transform: Any, context: Context) -> Lowered:
    cropper = transform.cropper
    image_key, threshold, from_indices = transform.image_key, cropper.image_threshold, ""
    if transform.fg_indices_key is not None or transform.bg_indices_key is not None:
        image_key, threshold = _indices(transform, context)
        from_indices = "centres as FgBgToIndicesd finds them"
    ratio = float(cropper.pos_ratio)
    shares = {"pos": ratio, "neg": 1.0 - ratio, "label_key": transform.label_key}
    bounds = {"image_key": image_key, "image_threshold": float(threshold)}
    return _centred(transform, CropByPosNegLabel, context, from_indices, **shares, **bounds)


def _indices(transform: Any, context: Context) -> tuple[str | None, float]:
    """Image key and threshold of the cached transform that found foreground and background."""
    import monai.transforms as mt

    for each in context.fixed:
        if isinstance(each, mt.FgBgToIndicesd) and transform.label_key in each.keys:
            names = (transform.label_key + each.fg_postfix, transform.label_key + each.bg_postfix)
            if names == (transform.fg_indices_key, transform.bg_indices_key) and each.converter.output_shape is None:
                return each.image_key, each.converter.image_threshold
    raise NotLowered(
        f'takes its centres from "{transform.fg_indices_key}" and "{transform.bg_indices_key}", which no cached '
        "FgBgToIndicesd of its label makes"
    )


def _classes(transform: Any, context: Context) -> Lowered:
    import monai.transforms as mt

    cropper = transform.cropper
    image_key, threshold, number, from_indices = transform.image_key, cropper.image_threshold, cropper.num_classes, ""
    if transform.indices_key is not None:
        key = transform.label_key
        makers = [each for each in context.fixed if isinstance(each, mt.ClassesToIndicesd) and key in each.keys]
        named = [each for each in makers if key + each.indices_postfix == transform.indices_key]
        converters = [each for each in named if each.converter.output_shape is None]
        if not converters:
            raise NotLowered(
                f'takes its centres from "{transform.indices_key}", which no cached ClassesToIndicesd makes'
            )
        converter, from_indices = converters[0].converter, "centres as ClassesToIndicesd finds them"
        image_key, threshold, number = converters[0].image_key, converter.image_threshold, converter.num_classes
    ratios = None if cropper.ratios is None else tuple(float(each) for each in cropper.ratios)
    number = number if number is not None or ratios is None else len(ratios)
    if number is None:
        raise NotLowered("has neither num_classes nor ratios; give num_classes")
    classes = {"num_classes": int(number), "ratios": ratios, "label_key": transform.label_key}
    bounds = {"image_key": image_key, "image_threshold": float(threshold)}
    return _centred(transform, CropByLabelClasses, context, from_indices, **classes, **bounds)


def _spatial(transform: Any, cropper: Any, num_samples: int, context: Context) -> Lowered:
    if cropper.random_size:
        raise NotLowered("draws the size of its patch (random_size=True), so that patches differ in size")
    size = triple_of(transform, "roi_size", cropper.roi_size, context)
    check_all_keys(transform, context, "crops")
    if not context.opening:
        if not context.patches:
            raise NotLowered(_LATE)
        return single(transform, Cut, "what it cuts away is never computed", size=size, random=cropper.random_center)
    kind: Any = SpatialCrop if cropper.random_center else CentreCrop
    crop: CropOp = build(
        transform, kind, size=size, keys=keys_of(transform), num_samples=num_samples, pad=_pads(False, size, context)
    )
    return _lowered_crop(crop)


def _pads(allowed: bool, size: Triple, context: Context) -> bool:
    """Whether smaller cases are to lie in zeros: the crop allows them, or the next transform pads its output."""
    return allowed or (context.following is not None and makes_whole(context.following, size, context))


def makes_whole(transform: Any, size: Triple, context: Context) -> bool:
    """Whether it pads, with zeros on both sides, all keys to that size."""
    import monai.transforms as mt

    match transform:
        case mt.ResizeWithPadOrCropd():
            padder = transform.padder.padder
        case mt.SpatialPadd():
            padder = transform.padder
        case _:
            return False
    if set(transform.keys) != set(context.keys) or not _with_zeros(transform, padder):
        return False
    try:
        return triple_of(transform, "spatial_size", padder.spatial_size, context) == size
    except NotLowered:
        return False


def _with_zeros(transform: Any, padder: Any) -> bool:
    return (
        all(str(mode) == "constant" for mode in transform.mode)
        and str(padder.method) == "symmetric"
        and all(not value for value in padder.kwargs.values())
    )


def _lowered_crop(crop: CropOp, *notes: str) -> Lowered:
    several = [f"{crop.num_samples} samples of a case follow each other"] if crop.num_samples > 1 else []
    return Lowered(crop=crop, note="; ".join([*several, *[note for note in notes if note]]))
