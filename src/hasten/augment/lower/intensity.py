"""Lowers MONAI's intensity transforms."""

from __future__ import annotations

from typing import Any, get_type_hints

from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, HistogramShift
from hasten.augment.field import BiasField
from hasten.augment.fourier import GibbsNoise, KSpaceSpikeNoise
from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.intensity import (
    Normalize,
    Rescale,
    ScaleIntensity,
    ScaleIntensityFixedMean,
    ScaleIntensityRange,
    ShiftIntensity,
    StdShiftIntensity,
)
from hasten.augment.lower.types import Context, Lowered, NotLowered, check_float, keys_of, pair, single
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.mix import CutMix, MixUp
from hasten.augment.noise import GaussianNoise, RicianNoise
from hasten.augment.smooth import GaussianSharpen, GaussianSmooth

_MIXED = "mixes the samples of a batch, whatever its size"


def lower_intensity(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    return _noise_and_filters(transform) or _curves(transform) or _colours(transform, context)


def _one(transform: Any, kind: Any, note: str = "", **arguments: Any) -> Lowered:
    return single(transform, kind, note, **{"prob": getattr(transform, "prob", 1.0), **arguments})


def _like(transform: Any, kind: Any, inner: Any, note: str = "", **arguments: Any) -> Lowered:
    """An operation with the arguments that MONAI's `inner` transform holds under the same names, and others."""
    if hasattr(inner, "dtype"):
        check_float(transform, [inner.dtype])
    for name, hint in get_type_hints(kind).items():
        if name not in ("keys", "prob", *arguments) and hasattr(inner, name):
            value = getattr(inner, name)
            arguments[name] = pair(value, name) if hint == tuple[float, float] or hasattr(value, "__iter__") else value
    return _one(transform, kind, note, **arguments)


def _noise_and_filters(transform: Any) -> Lowered | None:
    """Noise, filters and holes."""
    import monai.transforms as mt

    match transform:
        case mt.RandGaussianNoised():
            return _gaussian(transform, GaussianNoise, transform.rand_gaussian_noise)
        case mt.RandRicianNoised():
            inner = transform.rand_rician_noise
            _check_one_key(transform)
            if inner.channel_wise or inner.relative:
                raise NotLowered("has channel_wise or relative noise; Hasten's is one for all channels")
            return _gaussian(transform, RicianNoise, inner)
        case mt.RandGibbsNoised():
            return _like(transform, GibbsNoise, transform.rand_gibbs_noise)
        case mt.RandKSpaceSpikeNoised():
            inner = transform.rand_noise
            _check_one_key(transform)
            ranges = inner.intensity_range
            if ranges is not None and not isinstance(ranges[0], int | float):
                several = tuple(pair(each, "intensity_range") for each in ranges)
                return _like(transform, KSpaceSpikeNoise, inner, intensity_range=several)
            return _like(transform, KSpaceSpikeNoise, inner)
        case mt.RandGaussianSmoothd():
            _check_approx(transform.rand_smooth)
            return _like(transform, GaussianSmooth, transform.rand_smooth)
        case mt.RandGaussianSharpend():
            _check_approx(transform.rand_sharpen)
            return _like(transform, GaussianSharpen, transform.rand_sharpen)
        case mt.RandSimulateLowResolutiond():
            return _low_resolution(transform)
        case mt.RandCoarseDropoutd():
            return _boxes(transform, CoarseDropout, transform.dropper)
        case mt.RandCoarseShuffled():
            return _boxes(transform, CoarseShuffle, transform.shuffle)
    return None


def _curves(transform: Any) -> Lowered | None:
    """Functions of the intensity."""
    import monai.transforms as mt

    match transform:
        case mt.RandShiftIntensityd():
            if any(key is not None for key in transform.factor_key):
                raise NotLowered("reads a factor from the metadata of the case (factor_key)")
            return _like(transform, ShiftIntensity, transform.shifter)
        case mt.RandScaleIntensityd():
            return _like(transform, ScaleIntensity, transform.scaler)
        case mt.RandScaleIntensityFixedMeand():
            return _like(transform, ScaleIntensityFixedMean, transform.scaler)
        case mt.RandStdShiftIntensityd():
            return _like(transform, StdShiftIntensity, transform.shifter)
        case mt.RandBiasFieldd():
            return _like(transform, BiasField, transform.rand_bias_field)
        case mt.RandAdjustContrastd():
            return _like(transform, AdjustContrast, transform.adjuster)
        case mt.RandHistogramShiftd():
            low, high = transform.shifter.num_control_points
            return _one(transform, HistogramShift, num_control_points=(int(low), int(high)))
        case mt.NormalizeIntensityd():
            inner = transform.normalizer
            constants: Any = {
                name: _constants(getattr(inner, name), name, inner.channel_wise) for name in ("subtrahend", "divisor")
            }
            return _like(transform, Normalize, inner, **constants)
        case mt.ScaleIntensityRanged():
            return _like(transform, ScaleIntensityRange, transform.scaler)
        case mt.ScaleIntensityd():
            inner = transform.scaler
            if inner.minv is None and inner.maxv is None and inner.factor is not None:
                return _like(transform, ScaleIntensity, inner, factors=(float(inner.factor), float(inner.factor)))
            if inner.minv is None or inner.maxv is None:
                raise NotLowered("has one of minv and maxv without the other")
            return _like(transform, Rescale, inner)
    return None


def _gaussian(transform: Any, kind: Any, inner: Any) -> Lowered:
    for field in ("mean", "std"):
        if not isinstance(getattr(inner, field), int | float):
            raise NotLowered(f"has {field}={getattr(inner, field)}, which is no single number")
    std = (0.0 if inner.sample_std else float(inner.std), float(inner.std))
    return _like(transform, kind, inner, std=std)


def _low_resolution(transform: Any) -> Lowered:
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


def _boxes(transform: Any, kind: Any, inner: Any) -> Lowered:
    sizes: Any = {name: _sides(getattr(inner, name)) for name in ("spatial_size", "max_spatial_size")}
    note = "" if inner.max_spatial_size is None else "the size of each hole is drawn by itself"
    return _like(transform, kind, inner, note, **sizes)


def _sides(value: Any) -> int | tuple[int, ...] | None:
    return value if isinstance(value, int | None) else tuple(int(each) for each in value)


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


def _jitter(value: Any, name: str) -> float | tuple[float, float]:
    return 0.0 if value is None else pair(value, name)


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


def _check_approx(inner: Any) -> None:
    if inner.approx != "erf":
        raise NotLowered(f'has approx="{inner.approx}"; Hasten\'s Gaussian is "erf"')


def _check_one_key(transform: Any) -> None:
    if len(keys_of(transform)) > 1:
        raise NotLowered("draws other numbers for each of its keys; give each key its own transform")
