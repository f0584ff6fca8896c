"""Lowers MONAI's intensity transforms."""

from __future__ import annotations

from typing import Any, get_type_hints

from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast
from hasten.augment.intensity import Normalize, ScaleIntensity, ScaleIntensityRange, ShiftIntensity
from hasten.augment.lower.types import Context, Lowered, NotLowered, check_float, keys_of, pair, single
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.smooth import GaussianSmooth


def lower_intensity(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    import monai.transforms as mt

    match transform:
        case mt.RandGaussianNoised():
            inner = transform.rand_gaussian_noise
            for field in ("mean", "std"):
                if not isinstance(getattr(inner, field), int | float):
                    raise NotLowered(f"has {field}={getattr(inner, field)}, which is no single number")
            std = (0.0 if inner.sample_std else float(inner.std), float(inner.std))
            return _like(transform, GaussianNoise, inner, std=std)
        case mt.RandGaussianSmoothd():
            if transform.rand_smooth.approx != "erf":
                raise NotLowered(f'has approx="{transform.rand_smooth.approx}"; Hasten\'s Gaussian is "erf"')
            return _like(transform, GaussianSmooth, transform.rand_smooth)
        case mt.RandSimulateLowResolutiond():
            return _low_resolution(transform)
        case mt.RandShiftIntensityd():
            if any(key is not None for key in transform.factor_key):
                raise NotLowered("reads a factor from the metadata of the case (factor_key)")
            return _like(transform, ShiftIntensity, transform.shifter)
        case mt.RandScaleIntensityd():
            return _like(transform, ScaleIntensity, transform.scaler)
        case mt.RandAdjustContrastd():
            return _like(transform, AdjustContrast, transform.adjuster)
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
            raise NotLowered("stretches each image to a range of its own")
        case mt.RandTorchVisiond():
            if transform.name != "ColorJitter":
                raise NotLowered(f"runs torchvision's {transform.name}; Hasten has its ColorJitter")
            _check_one_key(transform)
            inner = transform.trans.trans
            given = {name: getattr(inner, name) for name in ("brightness", "contrast", "saturation", "hue")}
            fields = {name: 0.0 if value is None else pair(value, name) for name, value in given.items()}
            largest = 255.0 if keys_of(transform)[0] in context.bytes_keys else 1.0
            return single(transform, ColorJitter, f"values from 0 to {largest:g}", value_range=largest, **fields)
    return None


def _like(transform: Any, kind: Any, inner: Any, **arguments: Any) -> Lowered:
    """An operation with the arguments that MONAI's `inner` transform holds under the same names, and others."""
    if hasattr(inner, "dtype"):
        check_float(transform, [inner.dtype])
    for name, hint in get_type_hints(kind).items():
        if name not in ("keys", "prob", *arguments) and hasattr(inner, name):
            value = getattr(inner, name)
            arguments[name] = pair(value, name) if hint == tuple[float, float] or hasattr(value, "__iter__") else value
    return single(transform, kind, **{"prob": getattr(transform, "prob", 1.0), **arguments})


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
    half_pixel = down == "nearest-exact"
    return single(transform, SimulateLowResolution, prob=transform.prob, zoom_range=zoom, half_pixel=half_pixel)


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


def _check_one_key(transform: Any) -> None:
    if len(keys_of(transform)) > 1:
        raise NotLowered("draws other numbers for each of its keys; give each key its own transform")
