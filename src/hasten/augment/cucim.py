"""cuCIM's transforms on the GPU, sample by sample, as MONAI's `CuCIMd` and `RandCuCIMd` name them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.devices import automatic, kind_of

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "color_jitter": ("brightness", "contrast", "saturation", "hue"),
    "rand_color_jitter": ("brightness", "contrast", "saturation", "hue", "prob", "whole_batch"),
    "image_flip": ("spatial_axis",),
    "rand_image_flip": ("spatial_axis", "prob", "whole_batch"),
    "image_rotate_90": ("k", "spatial_axis"),
    "rand_image_rotate_90": ("spatial_axis", "prob", "max_k", "whole_batch"),
    "zoom": ("zoom_factor",),
    "rand_zoom": ("min_zoom", "max_zoom", "prob", "whole_batch"),
    "scale_intensity_range": ("b_max", "b_min", "a_max", "a_min", "clip"),
    "normalize_data": ("norm_constant", "min_value", "max_value", "type"),
}
"""Names of the parameters of each cuCIM transform, in their order after the image."""


def can_run() -> bool:
    """Whether cupy and cuCIM are installed and there is a CUDA device."""
    if not kind_of(automatic()).nvidia:
        return False
    try:
        _modules()
    except ImportError:
        return False
    return True


def arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name. Raises ValueError if the transform does not accept them."""
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in PARAMETERS[name]]
    try:
        return dict(inspect.Signature(parameters).bind_partial(*args, **kwargs).arguments)
    except TypeError as error:
        raise ValueError(f"CuCIM {name}: {error}; it takes {', '.join(PARAMETERS[name])}") from None


class OnGpu:
    """One of cuCIM's transforms on entries of an item. What cuCIM would draw without a seed is drawn here from `R`.

    Entries are tensors (C, H, W) on any device, and stay there.
    """

    def __init__(self, keys: tuple[str, ...], name: str, kwargs: Mapping[str, Any]) -> None:
        self.keys, self.name, self.kwargs = keys, name, dict(kwargs)
        self.R = np.random.RandomState()
        self.__name__ = f"cuCIM {name}"

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> OnGpu:
        self.R = state if state is not None else np.random.RandomState(seed)
        return self

    def __call__(self, item: Mapping[str, Any]) -> dict[str, Any]:
        return {**item, **{key: self.changed(item[key]) for key in self.keys}}

    def changed(self, image: Tensor) -> Tensor:
        """The transform of an image (C, H, W), on its device; the image itself where `prob` leaves it out."""
        name, kwargs = self._drawn()
        if not name:
            return image
        cupy, transforms = _modules()
        run = getattr(transforms, name)
        array = cupy.from_dlpack(image.contiguous().to(_gpu(image)))
        # Its colour jitter draws from numpy's global state, which `run_one` seeds and restores.
        return torch.from_dlpack(cupy.ascontiguousarray(run(array, **kwargs))).to(image.device)

    def _drawn(self) -> tuple[str, dict[str, Any]]:
        """The deterministic transform to run and its arguments; "" if none runs."""
        if not self.name.startswith("rand_"):
            return self.name, self.kwargs
        kwargs = {key: value for key, value in self.kwargs.items() if key not in ("prob", "whole_batch")}
        use = self.R.rand() < self.kwargs.get("prob", 0.1)
        if self.name == "rand_image_rotate_90":
            kwargs["k"] = int(self.R.randint(kwargs.pop("max_k", 3))) + 1
        if self.name == "rand_zoom":
            low, high = kwargs.pop("min_zoom", 0.9), kwargs.pop("max_zoom", 1.1)
            kwargs = {"zoom_factor": [float(each) for each in self.R.uniform(np.atleast_1d(low), np.atleast_1d(high))]}
            if len(kwargs["zoom_factor"]) == 1:
                kwargs["zoom_factor"] *= 2
        return (self.name.removeprefix("rand_") if use else ""), kwargs


def _modules() -> tuple[Any, Any]:
    return import_module("cupy"), import_module("cucim.core.operations.expose.transform")


def _gpu(image: Tensor) -> torch.device:
    return image.device if kind_of(image.device).nvidia else automatic()
