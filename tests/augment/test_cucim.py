"""MONAI's `CuCIMd` and `RandCuCIMd`, with cuCIM and without."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    CastToTyped,
    Compose,
    CuCIMd,
    RandCropByPosNegLabeld,
    RandCuCIMd,
    RandFlipd,
    RandLambdad,
    ScaleIntensityRanged,
    ToCupyd,
    ToNumpyd,
)
from torch import Tensor

from hasten.augment import compile as compiling
from hasten.augment import cucim
from hasten.augment.affine import Zoom
from hasten.augment.colour import ColorJitter
from hasten.augment.compile import compile_transforms
from hasten.augment.grid import Flip, Rotate90
from hasten.augment.intensity import ScaleIntensityRange
from tests.augment.lowering import lowered

PATHOLOGY = [
    ToCupyd("image"),
    RandCuCIMd("image", "color_jitter", brightness=64.0 / 255.0, contrast=0.75, saturation=0.25, hue=0.04),
    RandCuCIMd("image", "rand_image_flip", prob=0.5, spatial_axis=-1),
    RandCuCIMd("image", "rand_image_rotate_90", prob=0.5, max_k=3, spatial_axis=(-2, -1)),
    CastToTyped("image", dtype=np.float32),
    RandCuCIMd("image", "rand_zoom", prob=0.5, min_zoom=0.9, max_zoom=1.1),
    CuCIMd("image", "scale_intensity_range", a_min=0.0, a_max=255.0, b_min=-1.0, b_max=1.0),
    ToNumpyd("image"),
]
"""MONAI's tutorial on tumour detection in pathology, on a GPU."""


def slides(count: int = 4, side: int = 16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {"image": (torch.rand(count, 3, side, side, generator=draw) * 255).round()}


def only(transform: Any) -> Any:
    (op,) = lowered(RandFlipd("image", prob=0), transform).plan.ops[1:]
    return op


def test_without_cucim_the_tutorial_runs_on_hastens_operations(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program = lowered(*PATHOLOGY[1:])
    assert [type(op) for op in program.plan.ops] == [ColorJitter, Flip, Rotate90, Zoom, ScaleIntensityRange]
    (warning,) = caplog.records
    assert "cuCIM can't run here" in warning.message
    assert "color_jitter, rand_image_flip" in warning.message
    result = program(slides(), seed=0)["image"]
    assert result.shape == (4, 3, 16, 16)
    assert -1 <= result.min() < result.max() <= 1
    assert "cupy" in program.backends()


def test_arguments_are_cucims() -> None:
    assert only(RandCuCIMd("image", "color_jitter", False, 0.2, 0.3)) == ColorJitter(
        brightness=0.2, contrast=0.3, value_range=255.0
    )
    assert only(RandCuCIMd("image", "rand_color_jitter", hue=(-0.1, 0.2), prob=0.4)).prob == 0.4
    assert only(CuCIMd("image", "image_flip", spatial_axis=(1, 2))) == Flip(
        keys=("image",), prob=1.0, spatial_axis=(0, 1)
    )
    assert only(RandCuCIMd("image", "rand_image_flip", spatial_axis=2)).spatial_axis == (1,)
    assert only(RandCuCIMd("image", "rand_zoom", min_zoom=[0.8, 0.9], max_zoom=[1.0, 1.2])) == Zoom(
        keys=("image",), prob=0.1, min_zoom=(0.8, 0.9), max_zoom=(1.0, 1.2), mode=("bilinear",)
    )
    assert only(CuCIMd("image", "zoom", zoom_factor=[1.1, 1.2])).max_zoom == (1.1, 1.2)
    assert only(CuCIMd("image", "normalize_data", norm_constant=10, min_value=0, max_value=255)) == ScaleIntensityRange(
        a_min=0.0, a_max=255.0, b_min=0.0, b_max=10.0
    )
    # By place, cuCIM's order is b_max, b_min, a_max, a_min.
    assert only(CuCIMd("image", "scale_intensity_range", False, 1.0, 0.0, 255.0, 5.0)) == ScaleIntensityRange(
        a_min=5.0, a_max=255.0, b_min=0.0, b_max=1.0
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_quarter_turns_are_cupys(k: int) -> None:
    program = lowered(RandFlipd("image", prob=0), CuCIMd("image", "image_rotate_90", k=k, spatial_axis=(1, 2)))
    batch = slides()
    assert torch.equal(program(batch, seed=0)["image"], torch.rot90(batch["image"], k, (2, 3)))


def test_each_key_draws_for_itself() -> None:
    """As with cuCIM, to which MONAI hands one key after the other."""
    both = RandCuCIMd(("image", "other"), "rand_image_flip", spatial_axis=1, prob=0.5)
    batch = {"image": torch.rand(32, 1, 8, 8)}
    batch["other"] = batch["image"].clone()
    result = lowered(both)(batch, seed=0)
    same = (result["image"] == result["other"]).flatten(1).all(1)
    assert 4 < int(same.sum()) < 28


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandCuCIMd("image", "gabor"), 'cuCIM has no transform "gabor"; it has color_jitter'),
        (CuCIMd("image", "image_flip", axes=1), "it takes spatial_axis"),
        (CuCIMd("image", "image_flip", spatial_axis=0), "names the channels or no axis"),
        (CuCIMd("image", "image_flip", spatial_axis=3), "names the channels or no axis"),
        (CuCIMd("image", "image_rotate_90", spatial_axis=(1, 2)), "image_rotate_90 needs k"),
        (CuCIMd("image", "image_rotate_90", k=1, spatial_axis=1), "a turn needs two axes"),
        (
            CuCIMd("image", "normalize_data", norm_constant=1, min_value=0, max_value=1, type="atan"),
            'no operation for normalize_data with type="atan"; install',
        ),
        (RandCuCIMd("image", "rand_image_rotate_90", spatial_axis=(1, 2), max_k=0), "RandCuCIMd .*Rotate90: max_k=0"),
    ],
    ids=lambda each: None if isinstance(each, str) else each.name,
)
def test_what_has_no_counterpart_is_refused(transform: Any, message: str) -> None:
    flat = RandCropByPosNegLabeld("image", label_key="label", spatial_size=(8, 8))
    with pytest.raises(ValueError, match=message):
        compile_transforms(Compose([flat, transform]))


def test_before_a_crop_it_can_not_be_replaced() -> None:
    chain = [
        RandLambdad("image", func=abs),
        CuCIMd("image", "image_flip", spatial_axis=1),
        RandCropByPosNegLabeld("image", label_key="image", spatial_size=8),
    ]
    with pytest.raises(ValueError, match="CuCIMd: image_flip must run on whole cases here"):
        compile_transforms(Compose(chain))


def test_a_cached_one_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compile_transforms(Compose([CuCIMd("image", "image_flip", spatial_axis=1), RandFlipd("image")]))
    assert "must, to prepare cases" in caplog.text


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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cucim.can_run()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cucim.can_run()


def test_with_cucim_its_transform_runs_on_each_sample(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "can_run", lambda: True)
    monkeypatch.setattr(compiling.TransformProgram, "_cucim", lambda self, device: True)
    flip = RandCuCIMd("image", "rand_image_flip", spatial_axis=1, prob=0.5)
    program = compile_transforms(Compose([flip, ScaleIntensityRanged("image", a_min=0, a_max=255)]))
    assert "cuCIM on the GPU, sample by sample" in program.explain()
    assert "cupy (cuCIM), sample by sample" in program.backends()
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
    one, other = (transform.set_random_state(seed=5)(image)["image"] for _ in range(2))
    assert np.random.rand() == wanted  # noqa: NPY002
    assert torch.equal(one, other)
    assert not torch.equal(one, transform.set_random_state(seed=6)(image)["image"])
    assert transform(image)["id"] == 7


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
