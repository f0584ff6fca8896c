from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks.augments import batchgenerators_arm, monai_arm, torchio_arm
from benchmarks.augments.patches import Nnunet, volumes

TINY = Nnunet(side=12, batch=2)
STILL = replace(
    TINY, rotate_prob=0.0, scale_prob=0.0, noise_prob=0.0, blur_prob=0.0, lowres_prob=0.0, brightness_prob=0.0,
    contrast_prob=0.0, gamma_inverted_prob=0.0, gamma_prob=0.0,
)  # fmt: skip
NEEDS = {batchgenerators_arm: ("batchgeneratorsv2", "batchgenerators"), torchio_arm: ("torchio",)}


@pytest.fixture(autouse=True)
def _seeds_and_threads() -> Iterator[None]:
    from monai.utils import set_determinism

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    set_determinism(0)
    yield
    set_determinism(None)
    torch.set_num_threads(threads)


def need(arm: ModuleType) -> None:
    for package in NEEDS.get(arm, ()):
        pytest.importorskip(package)


def taken(batches: Any, count: int) -> list[Any]:
    with closing(batches) as result:
        return list(itertools.islice(result, count))


def flips(volume: torch.Tensor) -> Iterator[torch.Tensor]:
    for count in range(4):
        for axes in itertools.combinations((-3, -2, -1), count):
            yield volume.flip(axes)


def is_flip(result: torch.Tensor, wanted: torch.Tensor, atol: float, margin: int = 0) -> bool:
    """Alike up to a mirror, `margin` voxels from the border or more."""
    inside = (..., *(slice(margin, side - margin) for side in result.shape[-3:]))
    return any(torch.allclose(result[inside], turned[inside], rtol=0, atol=atol) for turned in flips(wanted))


CHANGES: dict[str, tuple[dict[str, Any], float]] = {
    "nothing": ({}, 1e-6),
    "scale": ({"scale_prob": 1.0, "scale_range": (1.3, 1.3)}, 1e-4),
    "blur": ({"blur_prob": 1.0, "channel_prob": 1.0, "blur_sigma": (0.8, 0.8)}, 0.012),
    "lowres": ({"lowres_prob": 1.0, "channel_prob": 1.0, "lowres_scale": (0.5, 0.5)}, 1e-5),
    "brightness": ({"brightness_prob": 1.0, "brightness_range": (1.25, 1.25)}, 1e-5),
    "contrast": ({"contrast_prob": 1.0, "contrast_range": (1.25, 1.25)}, 1e-5),
    "gamma": ({"gamma_prob": 1.0, "gamma_range": (1.5, 1.5)}, 1e-4),
    "gamma_inverted": ({"gamma_inverted_prob": 1.0, "gamma_range": (1.5, 1.5)}, 1e-4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_change_in_all_arms(change: str) -> None:
    need(batchgenerators_arm)
    settings, atol = CHANGES[change]
    work = replace(STILL, side=14, batch=1, **settings)
    assert work.source % 2 == 0
    cases = volumes(1, (work.source,) * 3)
    ((plain, _),) = taken(batchgenerators_arm.nnunet(cases, replace(STILL, side=14, batch=1), loader="inline"), 1)
    ((wanted, _),) = taken(batchgenerators_arm.nnunet(cases, work, loader="inline"), 1)
    assert is_flip(wanted, plain, 1e-3) == (change == "nothing")
    margin = 4 if change == "blur" else 0  # beyond the border MONAI sees zeros, nnU-Net the mirror image
    ((result, _),) = taken(monai_arm.nnunet(cases, work, loader="inline"), 1)
    assert is_flip(result, wanted, atol, margin)
    if change in ("nothing", "scale", "blur"):
        need(torchio_arm)
        ((result, _),) = taken(torchio_arm.nnunet(cases, work, loader="inline"), 1)
        assert is_flip(result, wanted, atol, margin)
