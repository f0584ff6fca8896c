"""Lowers MONAI's intensity transforms."""

from __future__ import annotations

from typing import Any

from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, HistogramShift
from hasten.augment.field import BiasField
from hasten.augment.fourier import GibbsNoise, KSpaceSpikeNoise
from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.intensity import (
    Normalize,
    ScaleIntensity,
    ScaleIntensityFixedMean,
    ScaleIntensityRange,
    ShiftIntensity,
    StdShiftIntensity,
)
from hasten.augment.lower.types import Context, Lowered, NotLowered, build, check_float, keys_of, pair
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.mix import CutMix, MixUp
from hasten.augment.noise import GaussianNoise, RicianNoise
from hasten.augment.rescale import Rescale
from hasten.augment.smooth import GaussianSharpen, GaussianSmooth


def lower_intensity(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    for family in (_noise, _scaled, _curves, _filters, _holes, _colours, _fixed):
        lowered = family(transform, context)
        if lowered is not None:
            return lowered
    return None


def _one(transform: Any, kind: Any, note: Any = "", **fields: Any) -> Lowered:
    fields.setdefault("prob", getattr(transform, "prob", 1.0))
    return Lowered(ops=(build(transform, kind, keys=keys_of(transform), **fields),), note=note)


def _noise(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandGaussianNoised():
            inner = transform.rand_gaussian_noise
            check_float(transform, [inner.dtype])
            _check_numbers(mean=inner.mean, std=inner.std)
            std = (0.0 if inner.sample_std else float(inner.std), float(inner.std))
            return _one(transform, GaussianNoise, mean=float(inner.mean), std=std)
        case mt.RandRicianNoised():
            inner = transform.rand_rician_noise
            check_float(transform, [inner.dtype])
            _check_one_key(transform)
            if inner.channel_wise or inner.relative:
                raise NotLowered("has channel_wise or relative noise; Hasten's is one for all channels")
            _check_numbers(mean=inner.mean, std=inner.std)
            std = (0.0 if inner.sample_std else float(inner.std), float(inner.std))
            return _one(transform, RicianNoise, mean=float(inner.mean), std=std)
        case mt.RandGibbsNoised():
            return _one(transform, GibbsNoise, alpha=pair(transform.rand_gibbs_noise.alpha, "alpha"))
        case mt.RandKSpaceSpikeNoised():
            inner = transform.rand_noise
            _check_one_key(transform)
            intensity_range = inner.intensity_range
            ranges = None if intensity_range is None else (
                pair(intensity_range, "intensity_range") if isinstance(intensity_range[0], int | float)
                else tuple(pair(each, "intensity_range") for each in intensity_range)
            )  # fmt: skip
            return _one(transform, KSpaceSpikeNoise, intensity_range=ranges, channel_wise=inner.channel_wise)
    return None


def _scaled(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandShiftIntensityd():
            inner = transform.shifter
            if any(key is not None for key in transform.factor_key):
                raise NotLowered("reads a factor from the metadata of the case (factor_key)")
            return _one(
                transform, ShiftIntensity, offsets=pair(inner.offsets, "offsets"), channel_wise=inner.channel_wise
            )
        case mt.RandScaleIntensityd():
            inner = transform.scaler
            check_float(transform, [inner.dtype])
            return _one(
                transform, ScaleIntensity, factors=pair(inner.factors, "factors"), channel_wise=inner.channel_wise
            )
        case mt.RandScaleIntensityFixedMeand():
            inner = transform.scaler
            check_float(transform, [inner.dtype])
            return _one(
                transform, ScaleIntensityFixedMean, factors=pair(inner.factors, "factors"),
                fixed_mean=inner.fixed_mean, preserve_range=inner.preserve_range, channel_wise=inner.channel_wise,
            )  # fmt: skip
        case mt.RandStdShiftIntensityd():
            inner = transform.shifter
            check_float(transform, [inner.dtype])
            return _one(
                transform, StdShiftIntensity, factors=pair(inner.factors, "factors"), nonzero=inner.nonzero,
                channel_wise=inner.channel_wise,
            )  # fmt: skip
        case mt.RandBiasFieldd():
            inner = transform.rand_bias_field
            check_float(transform, [inner.dtype])
            return _one(transform, BiasField, degree=inner.degree, coeff_range=pair(inner.coeff_range, "coeff_range"))
    return None


def _curves(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandAdjustContrastd():
            inner = transform.adjuster
            return _one(
                transform, AdjustContrast, gamma=pair(inner.gamma, "gamma"), invert_image=inner.invert_image,
                retain_stats=inner.retain_stats,
            )  # fmt: skip
        case mt.RandHistogramShiftd():
            low, high = transform.shifter.num_control_points
            return _one(transform, HistogramShift, num_control_points=(int(low), int(high)))
    return None


def _filters(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandGaussianSmoothd():
            inner = transform.rand_smooth
            _check_approx(inner)
            return _one(
                transform, GaussianSmooth, **{field: pair(getattr(inner, field), field) for field in _fields("sigma")}
            )
        case mt.RandGaussianSharpend():
            inner = transform.rand_sharpen
            _check_approx(inner)
            firsts = {field: pair(getattr(inner, field), field) for field in _fields("sigma1")}
            seconds = {
                field: float(value) if isinstance(value := getattr(inner, field), int | float) else pair(value, field)
                for field in _fields("sigma2")
            }
            return _one(transform, GaussianSharpen, alpha=pair(inner.alpha, "alpha"), **firsts, **seconds)
        case mt.RandSimulateLowResolutiond():
            return _low_resolution(transform, context)
    return None


def _low_resolution(transform: Any, context: Context) -> Lowered:
    _check_one_key(transform)
    down, up = str(transform.downsample_mode), str(transform.upsample_mode)
    if down not in ("nearest", "nearest-exact"):
        raise NotLowered(f"has downsample_mode={down}; Hasten takes the nearest voxel")
    if up not in ("bilinear", "trilinear") or transform.align_corners:
        raise NotLowered(
            f"has upsample_mode={up}, align_corners={transform.align_corners}; Hasten interpolates linearly"
        )
    zoom = pair(transform.zoom_range, "zoom_range")
    return _one(transform, SimulateLowResolution, zoom_range=zoom, half_pixel=down == "nearest-exact")


def _holes(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandCoarseDropoutd():
            inner = transform.dropper
            fill = tuple(inner.fill_value) if isinstance(inner.fill_value, list | tuple) else inner.fill_value
            return _one(
                transform, CoarseDropout, _sizes_note(inner), dropout_holes=inner.dropout_holes, fill_value=fill,
                **_hole_fields(inner),
            )  # fmt: skip
        case mt.RandCoarseShuffled():
            return _one(transform, CoarseShuffle, _sizes_note(transform.shuffle), **_hole_fields(transform.shuffle))
    return None


def _hole_fields(inner: Any) -> dict[str, Any]:
    return {
        "holes": inner.holes, "max_holes": inner.max_holes, "spatial_size": _sides(inner.spatial_size),
        "max_spatial_size": None if inner.max_spatial_size is None else _sides(inner.max_spatial_size),
    }  # fmt: skip


def _sides(value: Any) -> int | tuple[int, ...]:
    return int(value) if isinstance(value, int) else tuple(int(each) for each in value)


def _sizes_note(inner: Any) -> str:
    return "" if inner.max_spatial_size is None else "the size of each hole is drawn by itself"


def _colours(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.RandTorchVisiond():
            if transform.name != "ColorJitter":
                raise NotLowered(f"runs torchvision's {transform.name}; Hasten has its ColorJitter")
            _check_one_key(transform)
            inner = transform.trans.trans
            fields = {
                name: _jitter(getattr(inner, name), name) for name in ("brightness", "contrast", "saturation", "hue")
            }
            largest = 255.0 if keys_of(transform)[0] in context.bytes_keys else 1.0
            return _one(transform, ColorJitter, f"values from 0 to {largest:g}", value_range=largest, **fields)
        case mt.MixUpd():
            return _one(transform, MixUp, _MIXED, prob=1.0, alpha=float(transform.mixup.alpha))
        case mt.CutMixd():
            if transform.label_keys:
                raise NotLowered(
                    "mixes labels by the area of the box (label_keys); list them among keys to paste them too"
                )
            return _one(transform, CutMix, _MIXED, prob=1.0, alpha=float(transform.mixer.alpha))
    return None


_MIXED = "mixes the samples of a batch, whatever its size"


def _jitter(value: Any, name: str) -> float | tuple[float, float]:
    return 0.0 if value is None else pair(value, name)


def _fixed(transform: Any, context: Context) -> Lowered | None:
    import monai.transforms as mt

    match transform:
        case mt.NormalizeIntensityd():
            inner = transform.normalizer
            check_float(transform, [inner.dtype])
            return _one(
                transform, Normalize, subtrahend=_constants(inner.subtrahend, "subtrahend", inner.channel_wise),
                divisor=_constants(inner.divisor, "divisor", inner.channel_wise), nonzero=inner.nonzero,
                channel_wise=inner.channel_wise,
            )  # fmt: skip
        case mt.ScaleIntensityRanged():
            inner = transform.scaler
            check_float(transform, [inner.dtype])
            return _one(
                transform, ScaleIntensityRange, a_min=float(inner.a_min), a_max=float(inner.a_max), b_min=inner.b_min,
                b_max=inner.b_max, clip=inner.clip,
            )  # fmt: skip
        case mt.ScaleIntensityd():
            inner = transform.scaler
            check_float(transform, [inner.dtype])
            if inner.minv is None and inner.maxv is None and inner.factor is not None:
                return _one(transform, ScaleIntensity, factors=(float(inner.factor), float(inner.factor)))
            if inner.minv is None or inner.maxv is None:
                raise NotLowered("has one of minv and maxv without the other")
            return _one(
                transform, Rescale, minv=float(inner.minv), maxv=float(inner.maxv), channel_wise=inner.channel_wise
            )
    return None


def _constants(value: Any, field: str, channel_wise: bool) -> float | tuple[float, ...] | None:
    if value is None or isinstance(value, int | float):
        if channel_wise and value is not None:
            raise NotLowered(f"has one {field} for channel_wise=True, which needs one for each channel")
        return value
    import numpy as np

    numbers = np.asarray(value)
    if numbers.ndim != 1 or not channel_wise:
        raise NotLowered(f"has a {field} for each voxel")
    return tuple(float(each) for each in numbers)


def _fields(name: str) -> tuple[str, ...]:
    return f"{name}_x", f"{name}_y", f"{name}_z"


def _check_approx(inner: Any) -> None:
    if inner.approx != "erf":
        raise NotLowered(f'has approx="{inner.approx}"; Hasten\'s Gaussian is "erf"')


def _check_one_key(transform: Any) -> None:
    if len(keys_of(transform)) > 1:
        raise NotLowered("draws other numbers for each of its keys; give each key a transform of its own")


def _check_numbers(**values: Any) -> None:
    for field, value in values.items():
        if not isinstance(value, int | float):
            raise NotLowered(f"has {field}={value}, which is no single number")
