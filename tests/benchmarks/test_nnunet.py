"""What the benchmark of nnU-Net's trainer measures with; its arms need nnU-Net and run by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from benchmarks.nnunets.likeness import (
    Setting,
    distances,
    limit,
    own_patches,
    series,
)

PATCHES = 240


def smooth_cases(shape: tuple[int, int, int] = (20, 22, 24)) -> Any:
    rng = np.random.default_rng(0)
    cases = {}
    for name in "abcdef":
        image = gaussian_filter(rng.standard_normal(shape), 1.5).astype(np.float32)
        image /= image.std()
        seg = (image > 0.8).astype(np.int8)[None] + (image > 1.6)
        locations = {value: np.argwhere(seg == value) for value in (1, 2)}
        cases[name] = (image[None], seg, None, {"class_locations": locations})
    return SimpleNamespace(identifiers=list(cases), load_case=cases.__getitem__)


def test_louder_patches_are_told_apart() -> None:
    cases = smooth_cases()
    usual = Setting((12, 12, 12), (-0.5236, 0.5236), False, (19, 19, 19), (0, 1, 2))
    other = SimpleNamespace(identifiers=cases.identifiers, load_case=lambda name: _louder(cases.load_case(name)))
    one = series(own_patches(cases, usual, PATCHES, seed=0))
    assert max(distances(one, series(own_patches(cases, usual, PATCHES, seed=1))).values()) < limit(PATCHES)
    assert max(distances(one, series(own_patches(other, usual, PATCHES, seed=1))).values()) > limit(PATCHES)


def _louder(case: Any) -> Any:
    image, *rest = case
    return (image * 1.2, *rest)
