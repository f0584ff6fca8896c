"""Stain jitter of histology slides: splits an RGB image into its dyes, and changes each separately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hasten.augment.colour import LargestValue, check_rgb
from hasten.augment.op import Drawn, Operation, Prob, Range, check_range, spread, uniform_between
from hasten.sample.constant import constant

_ALPHA, _BETA = 1, 2
_STAINS = 3

_RGB_OF_HED = (0.65, 0.70, 0.29, 0.07, 0.99, 0.11, 0.27, 0.57, 0.78)
"""Absorption of red, green and blue by haematoxylin, eosin and DAB, row by row (Ruifrok and Johnston 2001)."""
_HED_OF_RGB = tuple(np.linalg.inv(np.reshape(_RGB_OF_HED, (3, 3))).ravel().tolist())
_DARKEST = 1e-6
_UNIT = -math.log(_DARKEST)
"""scikit-image measures stains in this many natural logarithms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StainJitter(Operation):
    """alpha * s + beta of each stain s (haematoxylin, eosin, DAB), alpha from U(alpha), beta from U(beta).

    `drawn`: alpha (B, 3), beta (B, 3). `alpha` and `beta` are one range for all stains or a range for each. Tellez et
    al. 2018 (HED-light; HED-strong is 0.2 in place of 0.05), without their exception of patches that are nearly all
    background or all tissue. The stains are those of scikit-image's rgb2hed and hed2rgb since 0.18, and beta is in
    their unit. Values lie between 0 and `value_range`.
    """

    prob: Prob = 1.0
    alpha: Range | tuple[Range, Range, Range] = (0.95, 1.05)
    beta: Range | tuple[Range, Range, Range] = (-0.05, 0.05)
    value_range: LargestValue = 1.0

    def check(self) -> None:
        for limits in _per_stain("alpha", self.alpha):
            check_range("StainJitter", "alpha", limits, low=0.0)
        for limits in _per_stain("beta", self.beta):
            check_range("StainJitter", "beta", limits)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        check_rgb("StainJitter", shape[0])
        return {
            "alpha": uniform_between(key, _ALPHA, _per_stain("alpha", self.alpha)),
            "beta": uniform_between(key, _BETA, _per_stain("beta", self.beta)),
        }

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        check_rgb("StainJitter", image.shape[1])
        # Scales and units are folded into the two products, to save passes over the voxels.
        apart = constant(_HED_OF_RGB, image.device).view(1, 3, 3)
        shift = math.log(self.value_range)
        logs = image.clamp_min(_DARKEST * self.value_range).log_()
        stains = _product(logs, apart * (-1.0 / _UNIT), apart.sum(1) * (shift / _UNIT)).clamp_min_(0.0)
        together = constant(_RGB_OF_HED, image.device).view(1, 3, 3) * -_UNIT
        added = (drawn["beta"][:, :, None] * together).sum(1) + shift
        return _product(stains, drawn["alpha"][:, :, None] * together, added).exp_().clamp_max_(self.value_range)


def _per_stain(field: str, value: Range | tuple[Range, Range, Range]) -> tuple[Range, ...]:
    ranges = value if isinstance(value[0], tuple | list) else (value,) * _STAINS
    if len(ranges) != _STAINS or any(not isinstance(each, tuple | list) or len(each) != 2 for each in ranges):
        raise ValueError(f"StainJitter: {field}={value}; give (low, high), or one such pair for each of the 3 stains")
    return ranges


def _product(image: Tensor, matrix: Tensor, added: Tensor) -> Tensor:
    """Channels times a matrix. image: (B, 3, *S); matrix: (B or 1, 3 in, 3 out); added: (B or 1, 3).

    By multiplication and addition: a matrix product of 3 rows is slower on a CPU, and may be rounded to TF32 on a GPU.
    """
    out = image[:, 0:1] * spread(matrix[:, 0], image)
    for channel in (1, 2):
        out.addcmul_(image[:, channel : channel + 1], spread(matrix[:, channel], image))
    return out.add_(spread(added, image))
