from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from benchmarks.augments import batchgenerators_arm, monai_arm, torchio_arm
from benchmarks.augments.patches import Case, Nnunet, volumes

TINY = Nnunet(side=12, batch=2)
STILL = replace(
    TINY, rotate_prob=0.0, scale_prob=0.0, noise_prob=0.0, blur_prob=0.0, lowres_prob=0.0, brightness_prob=0.0,
    contrast_prob=0.0, gamma_inverted_prob=0.0, gamma_prob=0.0,
)  # fmt: skip
NEEDS = {batchgenerators_arm: ("batchgeneratorsv2", "batchgenerators"), torchio_arm: ("torchio",)}
LOADERS = [
    (arm, loader)
    for arm, loaders in ((batchgenerators_arm, ("nondet", "dataloader", "inline")),
                         (monai_arm, ("processes", "thread", "inline")),
                         (torchio_arm, ("processes", "queue", "inline")))
    for loader in loaders
]  # fmt: skip


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


def copies(cases: list[Case]) -> list[Case]:
    return [Case(case.image.clone(), case.label.clone()) for case in cases]


def children() -> set[int]:
    """Process ids; the server of `tests.processes` may be among them."""
    return {process.pid for process in psutil.Process().children()}


def unchanged(cases: list[Case], before: list[Case]) -> bool:
    return all(
        torch.equal(case.image, old.image) and torch.equal(case.label, old.label)
        for case, old in zip(cases, before, strict=True)
    )


def flips(volume: torch.Tensor) -> Iterator[torch.Tensor]:
    for count in range(4):
        for axes in itertools.combinations((-3, -2, -1), count):
            yield volume.flip(axes)


def is_flip(result: torch.Tensor, wanted: torch.Tensor, atol: float, margin: int = 0) -> bool:
    """Alike up to a mirror, `margin` voxels from the border or more."""
    inside = (..., *(slice(margin, side - margin) for side in result.shape[-3:]))
    return any(torch.allclose(result[inside], turned[inside], rtol=0, atol=atol) for turned in flips(wanted))


@pytest.mark.parametrize(
    ("arm", "loader"),
    [pytest.param(*each, marks=() if each[1] == "inline" else pytest.mark.slow) for each in LOADERS],
)
def test_nnunet_batches(arm: ModuleType, loader: str) -> None:
    need(arm)
    programs = children()
    cases = volumes(2, (TINY.source + 3,) * 3)
    before = copies(cases)
    result = taken(arm.nnunet(cases, TINY, loader=loader, workers=1), 4)
    for image, label in result:
        assert image.shape == label.shape == (2, 1, 12, 12, 12)
        assert image.dtype == torch.float32
        assert torch.isfinite(image).all()
        assert set(label.unique().tolist()) <= {0, 1, 2}
    assert not torch.equal(result[0][0], result[1][0])
    assert unchanged(cases, before)
    assert children() == programs  # workers end with the iterator


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
