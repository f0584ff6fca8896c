"""MONAI's `CuCIMd` and `RandCuCIMd`, with cuCIM and without."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    CuCIMd,
    RandCuCIMd,
    RandFlipd,
    ScaleIntensityRanged,
)
from torch import Tensor

from hasten.augment import cucim
from hasten.augment import from_monai as compiling
from hasten.augment.from_monai import compile_transforms
from hasten.augment.whole_cases import run_one
from tests.augment.lowering import lowered


def slides(count: int = 4, side: int = 16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {"image": (torch.rand(count, 3, side, side, generator=draw) * 255).round()}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandCuCIMd("image", "gabor"), 'cuCIM has no transform "gabor"; it has color_jitter'),
        (CuCIMd("image", "image_flip", axes=1), "it takes spatial_axis"),
        (CuCIMd("image", "image_flip", spatial_axis=1), "CuCIMd: image_flip needs a CUDA device"),
    ],
)
def test_what_can_not_run_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered(RandFlipd("image", prob=0), transform)


class FakeGpu:
    """Stands in for cupy and cuCIM, on numpy."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def module(self, name: str) -> Any:
        def run(image: np.ndarray, **given: Any) -> np.ndarray:
            self.calls.append((name, given))
            if name == "image_flip":
                return np.flip(image, given["spatial_axis"])
            if name == "color_jitter":
                return image * np.random.uniform(0.5, 1.5)  # noqa: NPY002
            return image

        return run

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = {"color_jitter", "image_flip", "image_rotate_90", "zoom", "scale_intensity_range", "normalize_data"}
        transforms = SimpleNamespace(**{name: self.module(name) for name in names})
        cupy = SimpleNamespace(from_dlpack=np.from_dlpack, ascontiguousarray=np.ascontiguousarray)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setitem(sys.modules, "cucim.core.operations.expose.transform", transforms)
        for parent in ("cucim", "cucim.core", "cucim.core.operations", "cucim.core.operations.expose"):
            monkeypatch.setitem(sys.modules, parent, SimpleNamespace(__path__=[]))
        monkeypatch.setattr(cucim, "_gpu", lambda image: image.device)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    result = FakeGpu()
    result.install(monkeypatch)
    return result


def test_without_a_cuda_device_nothing_can_run(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, can_run in (("cpu", False), ("cuda", True)):
        monkeypatch.setattr(cucim, "automatic", partial(torch.device, name))
        assert cucim.can_run() == can_run


def test_with_cucim_its_transform_runs_on_each_sample(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "can_run", lambda: True)
    made = compiling.TransformProgram._context_for
    monkeypatch.setattr(
        compiling.TransformProgram, "_context_for", lambda self, *args: replace(made(self, *args), cucim=True)
    )
    flip = RandCuCIMd("image", "rand_image_flip", spatial_axis=1, prob=0.5)
    program = compile_transforms(Compose([flip, ScaleIntensityRanged("image", a_min=0, a_max=255)]))
    assert "cuCIM on the GPU, sample by sample" in program.explain()
    batch = slides(64)
    result = program(batch, seed=0)["image"] * 255
    flipped = [bool(torch.allclose(result[row], batch["image"][row].flip(1), atol=1e-3)) for row in range(64)]
    assert len(gpu.calls) == sum(flipped)
    assert 16 < sum(flipped) < 48
    assert torch.equal(program(batch, seed=0)["image"] * 255, result)


def test_what_cucim_draws_from_numpy_is_seeded_and_numpy_is_left_alone(gpu: FakeGpu) -> None:
    transform = cucim.OnGpu(("image",), "color_jitter", {"brightness": 0.5})
    image = {"image": torch.ones(3, 4, 4), "id": 7}
    np.random.seed(3)  # noqa: NPY002
    wanted = np.random.RandomState(3).rand()
    one, other = (run_one((transform,), image, 5)["image"] for _ in range(2))
    assert np.random.rand() == wanted  # noqa: NPY002
    assert torch.equal(one, other)
    assert not torch.equal(one, run_one((transform,), image, 6)["image"])
    assert run_one((transform,), image, 5)["id"] == 7


def test_what_cucim_would_draw_is_drawn_within_the_ranges(gpu: FakeGpu) -> None:
    image = {"image": torch.ones(3, 4, 4)}
    turns = cucim.OnGpu(("image",), "rand_image_rotate_90", {"spatial_axis": (1, 2), "prob": 1.0, "max_k": 2})
    zoom = cucim.OnGpu(("image",), "rand_zoom", {"min_zoom": 0.8, "max_zoom": 1.2, "prob": 1.0})
    for seed in range(30):
        turns.set_random_state(seed=seed)(image)
        zoom.set_random_state(seed=seed)(image)
    assert {given["k"] for name, given in gpu.calls if name == "image_rotate_90"} == {1, 2}
    zooms = [given["zoom_factor"] for name, given in gpu.calls if name == "zoom"]
    assert all(first == second and 0.8 <= first <= 1.2 for first, second in zooms)
