"""Every operation that changes values, with prob=1: what the contract suite runs."""

from __future__ import annotations

from hasten.augment.noise import GaussianNoise, RicianNoise
from hasten.augment.op import ValueOp
from tests.augment import (
    examples_colour,
    examples_contrast,
    examples_field,
    examples_fourier,
    examples_holes,
    examples_intensity,
    examples_lowres,
    examples_smooth,
    examples_stain,
)

NOISE: list[ValueOp] = [
    GaussianNoise(prob=1, mean=0.1, std=(0.2, 0.5)),
    RicianNoise(prob=1, std=(0.2, 0.5)),
]

EXAMPLES: list[ValueOp] = [
    *NOISE,
    *examples_colour.EXAMPLES,
    *examples_contrast.EXAMPLES,
    *examples_field.EXAMPLES,
    *examples_fourier.EXAMPLES,
    *examples_holes.EXAMPLES,
    *examples_intensity.EXAMPLES,
    *examples_lowres.EXAMPLES,
    *examples_smooth.EXAMPLES,
    *examples_stain.EXAMPLES,
]
