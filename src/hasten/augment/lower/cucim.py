"""Lowers MONAI's `CuCIMd` and `RandCuCIMd`: cuCIM if it can run, else Hasten's operations with its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from hasten.augment.affine import Zoom
from hasten.augment.chain import PerSample
from hasten.augment.colour import ColorJitter
from hasten.augment.cucim import PARAMETERS, OnGpu, arguments
from hasten.augment.grid import Flip, Rotate90
from hasten.augment.intensity import ScaleIntensityRange
from hasten.augment.lower.types import Context, Lowered, build, keys_of, name_of
from hasten.augment.reshape import Reorder, quarter_turns

_LARGEST = 255.0
_INSTEAD = "Hasten's operation in place of cuCIM's"


def is_cucim(transform: Any) -> bool:
    import monai.transforms as mt

    return isinstance(transform, mt.CuCIMd | mt.RandCuCIMd)


def lower_cucim(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises ValueError where cuCIM can't run and Hasten has no such operation."""
    if not is_cucim(transform):
        return None
    name = transform.name
    if name not in PARAMETERS:
        raise ValueError(f'{name_of(transform)}: cuCIM has no transform "{name}"; it has {", ".join(PARAMETERS)}')
    kwargs = arguments(name, transform.trans.args, transform.trans.kwargs)
    if context.cucim:
        op = PerSample(transforms=(OnGpu(keys_of(transform), name, kwargs),))
        return Lowered(ops=(op,), note="cuCIM on the GPU, sample by sample")
    # cuCIM draws for each key separately, so each key is a separate operation here.
    ops = tuple(_equivalent(transform, key, name, kwargs, context) for key in keys_of(transform))
    return Lowered(ops=ops, note=_note(name))


def _note(name: str) -> str:
    if name.endswith("zoom"):
        return f"{_INSTEAD}, which interpolates linearly where cuCIM averages"
    return f"{_INSTEAD}, in float32" if name.endswith("jitter") else _INSTEAD


def _equivalent(transform: Any, key: str, name: str, kwargs: Mapping[str, Any], context: Context) -> Any:
    prob = float(kwargs.get("prob", 0.1)) if name.startswith("rand_") else 1.0
    made = partial(build, transform, keys=(key,), prob=prob)
    match name:
        case "color_jitter" | "rand_color_jitter":
            amounts = {each: _amount(kwargs[each]) for each in PARAMETERS["color_jitter"] if each in kwargs}
            return made(ColorJitter, **amounts, value_range=_LARGEST)
        case "image_flip" | "rand_image_flip":
            return made(Flip, spatial_axis=_axes(transform, kwargs.get("spatial_axis"), context))
        case "rand_image_rotate_90":
            axes = _plane(transform, kwargs, context)
            return made(Rotate90, max_k=kwargs.get("max_k", 3), spatial_axes=axes)
        case "image_rotate_90":
            first, second = (axis + 3 - context.dims for axis in _plane(transform, kwargs, context))
            order, backward = quarter_turns(int(_needed(transform, kwargs, "k")) % 4, first, second)
            return made(Reorder, order=order, backward=backward)
        case "zoom" | "rand_zoom":
            low, high = (
                (kwargs.get("min_zoom", 0.9), kwargs.get("max_zoom", 1.1)) if prob < 1 or name == "rand_zoom"
                else (_needed(transform, kwargs, "zoom_factor"),) * 2
            )  # fmt: skip
            return made(Zoom, min_zoom=_tuple(low), max_zoom=_tuple(high), mode=("bilinear",), padding_mode="border")
        case "scale_intensity_range":
            limits = {each: float(_needed(transform, kwargs, each)) for each in ("a_min", "a_max", "b_min", "b_max")}
            return made(ScaleIntensityRange, **limits, clip=bool(kwargs.get("clip", False)))
    if kwargs.get("type", "range") != "range":
        raise ValueError(
            f'{name_of(transform)}: Hasten has no operation for normalize_data with type="{kwargs["type"]}"; install '
            'cupy and cucim and run it on a GPU, or write type="range"'
        )
    low, high = float(_needed(transform, kwargs, "min_value")), float(_needed(transform, kwargs, "max_value"))
    top = float(_needed(transform, kwargs, "norm_constant"))
    return made(ScaleIntensityRange, a_min=low, a_max=high, b_min=0.0, b_max=top)


def _needed(transform: Any, kwargs: Mapping[str, Any], field: str) -> Any:
    if field not in kwargs:
        raise ValueError(f"{name_of(transform)}: {transform.name} needs {field}; give it")
    return kwargs[field]


def _amount(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) else (float(value[0]), float(value[1]))


def _tuple(value: Any) -> tuple[float, ...]:
    return (float(value),) if isinstance(value, int | float) else tuple(float(each) for each in value)


def _axes(transform: Any, value: Any, context: Context) -> tuple[int, ...]:
    """Axes of space, which cuCIM counts from the channels on. Raises ValueError for the channels themselves."""
    count = context.dims + 1
    axes = range(count) if value is None else (value,) if isinstance(value, int) else value
    spatial_axes = tuple(int(axis) % count - 1 for axis in axes if -count <= int(axis) < count)
    if len(spatial_axes) < len(tuple(axes)) or min(spatial_axes, default=math.inf) < 0:
        raise ValueError(
            f"{name_of(transform)}: spatial_axis={value} of {transform.name} names the channels or no axis; it "
            f"counts them with the channels, so that 1 to {context.dims} are axes of space, and -1 the last"
        )
    return spatial_axes


def _plane(transform: Any, kwargs: Mapping[str, Any], context: Context) -> tuple[int, int]:
    axes = _axes(transform, _needed(transform, kwargs, "spatial_axis"), context)
    if len(axes) != 2:
        raise ValueError(f"{name_of(transform)}: spatial_axis={kwargs['spatial_axis']}; a turn needs two axes")
    return axes[0], axes[1]
