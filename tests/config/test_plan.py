from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hasten.config.check import check_run
from hasten.config.decision import CPU, GIVEN, GPU, Budget, Decision
from hasten.config.fingerprint import Fingerprint
from hasten.config.load import dump_run, load_run
from hasten.config.networks import NETWORKS, network_mistake
from hasten.config.plan import decide_settings
from hasten.config.schema import NetworkConfig, PrepareConfig, RunConfig, SampleConfig, TrainConfig
from hasten.config.settled import PlannedRun, planned_run, undecided

Shape = tuple[int, int, int]
Spacing = tuple[float, float, float]


def fingerprint(
    *shapes: Shape,
    spacings: tuple[Spacing, ...] = (),
    modality: str = "MRI",
    channels: tuple[str, ...] = ("image",),
    spatial_dims: int = 3,
    foreground: tuple[float, float] = (10.0, 200.0),
    crop_fraction: float = 1.0,
) -> Fingerprint:
    low, high = foreground
    statistics = {"min": low, "p0_5": low, "p50": (low + high) / 2, "p99_5": high, "max": high, "mean": 0.0, "std": 1.0}
    rows = {name: (value,) * len(channels) for name, value in statistics.items()}
    return Fingerprint(
        name="set",
        num_cases=len(shapes),
        spatial_dims=spatial_dims,
        modality=modality,
        channels=channels,
        labels={0: "background", 1: "organ"},
        shapes=shapes,
        spacings=spacings or ((1.0, 1.0, 1.0),) * len(shapes),
        sampled_cases=len(shapes),
        intensity=rows,
        foreground_intensity=rows,
        crop_fraction=crop_fraction,
    )


def atrium(*, box: Spacing = (36.0, 58.0, 96.0), kept: tuple[float, ...] = (0.99, 0.98, 0.97, 0.96)) -> Fingerprint:
    """Large volumes of an organ that fills half of their length, and what grids of 1.25 times as wide voxels and more
    keep of it."""
    data = fingerprint((88, 142, 192), spacings=((0.625, 0.625, 0.625),))
    factors = (1.25, 1.5, 2.0, 2.5)
    return dataclasses.replace(
        data, foreground_box=box, kept_dice={by: {1: dice} for by, dice in zip(factors, kept, strict=True)}
    )


HIPPOCAMPUS = fingerprint((51, 35, 35), (50, 36, 36), (52, 34, 35), channels=("MRI",))
CT = fingerprint(
    (100, 512, 512),
    (80, 512, 512),
    (140, 512, 512),
    spacings=((5.0, 0.78125, 0.78125), (5.0, 0.9, 0.9), (2.5, 0.7, 0.7)),
    modality="CT",
    foreground=(-50.5, 180.5),
    crop_fraction=0.6,
)
FLAT = fingerprint((1, 512, 640), (1, 512, 640), spatial_dims=2, modality="")
MULTI = fingerprint((155, 240, 240), channels=("FLAIR", "T1w", "t1gd", "T2w"), modality="FLAIR")


def plan(
    data: Fingerprint, config: RunConfig | None = None, *, cuda: bool = False
) -> tuple[PlannedRun, dict[str, Decision]]:
    return decide_settings(data, config or RunConfig(), num_train=len(data.shapes), accelerator=cuda)


def network(**settings: Any) -> RunConfig:
    return RunConfig(network=NetworkConfig(**settings))


def unit_of(strides: tuple[Shape, ...] | None) -> list[int]:
    assert strides is not None
    return [math.prod(stride[axis] for stride in strides) for axis in range(3)]


def check_consistent(data: Fingerprint, config: RunConfig, decisions: dict[str, Decision], budget: Budget) -> None:
    """What holds for every plan that leaves the network to the data."""
    patch, strides, channels = config.sample.patch, config.network.strides, config.network.channels
    assert patch is not None
    assert strides is not None
    assert channels is not None
    unit = unit_of(strides)
    assert all(side >= by and side % by == 0 for side, by in zip(patch, unit, strict=True))
    coarse = 2 ** (budget.levels - 1)
    least = coarse**data.spatial_dims
    assert math.prod(patch) <= max(budget.patch_voxels, least)
    assert len(strides) == len(channels) - 1 >= 1
    assert len(channels) <= budget.levels
    assert config.sample.batch_size is not None
    assert config.sample.batch_size >= 2
    assert config.infer.patch == patch
    assert check_run(config) == []
    assert all(decision.reason for decision in decisions.values())
    assert undecided(config) == []
    if data.spatial_dims == 2:
        assert patch[0] == unit[0] == 1


sizes, mm = st.integers(8, 600), st.floats(0.3, 6.0)
cases = st.tuples(st.tuples(sizes, sizes, sizes), st.tuples(mm, mm, mm))


@given(st.lists(cases, min_size=1, max_size=5), st.booleans(), st.sampled_from(["MRI", "CT", ""]))
@example([((16, 512, 512), (6.0, 0.3, 0.3))], False, "CT")
@example([((600, 8, 8), (0.3, 6.0, 6.0))], True, "")
@example([((8, 600, 600), (1.0, 5.0, 5.0))], False, "MRI")
def test_every_3d_plan_fits_together(images: list[tuple[Shape, Spacing]], cuda: bool, modality: str) -> None:
    shapes, spacings = zip(*images, strict=True)
    data = fingerprint(*shapes, spacings=spacings, modality=modality)
    config, decisions = plan(data, cuda=cuda)
    check_consistent(data, config, decisions, GPU if cuda else CPU)
    _check_strides(config, (GPU if cuda else CPU).levels, data)


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5), st.booleans(), mm, mm)
def test_every_2d_plan_fits_together(images: list[tuple[int, int]], cuda: bool, row: float, column: float) -> None:
    shapes = tuple((1, height, width) for height, width in images)
    data = fingerprint(*shapes, spacings=((1.0, row, column),) * len(shapes), spatial_dims=2, modality="")
    config, decisions = plan(data, cuda=cuda)
    check_consistent(data, config, decisions, GPU if cuda else CPU)
    _check_strides(config, (GPU if cuda else CPU).levels, data)


def _check_strides(config: RunConfig, levels: int, data: Fingerprint) -> None:
    """No level is given away, and none makes the voxels less alike than they have to be."""
    assert config.sample.patch is not None
    assert config.network.strides is not None
    assert config.prepare.spacing is not None
    median = [sorted(at[axis] for at in data.spacings) for axis in range(3)]
    own = [(column[(len(column) - 1) // 2] + column[len(column) // 2]) / 2 for column in median]
    voxel = [wanted or result for wanted, result in zip(config.prepare.spacing, own, strict=True)]
    sides = list(config.sample.patch)
    for stride in config.network.strides:
        free = [at for at, side in zip(voxel, sides, strict=True) if side >= 8 and side % 2 == 0]
        for axis, by in enumerate(stride):
            assert by in (1, 2)
            assert by == 1 or voxel[axis] < 2 * min(free)
            assert by == 1 or sides[axis] >= 8
        assert max(stride) == 2
        sides = [side // by for side, by in zip(sides, stride, strict=True)]
        voxel = [at * by for at, by in zip(voxel, stride, strict=True)]
    assert len(config.network.strides) == levels - 1 or all(side < 8 or side % 2 for side in sides)


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("data", [HIPPOCAMPUS, CT, FLAT, MULTI], ids=["hippocampus", "ct", "flat", "multi"])
def test_known_kinds_of_data(data: Fingerprint, cuda: bool) -> None:
    config, decisions = plan(data, cuda=cuda)
    check_consistent(data, config, decisions, GPU if cuda else CPU)
    assert planned_run(load_run_back(config)) == config


def load_run_back(config: RunConfig) -> RunConfig:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(dump_run(config))
        return load_run(path)


def test_small_cases_are_held_whole_and_not_resampled() -> None:
    config, decisions = plan(HIPPOCAMPUS)
    assert config.sample.patch == (56, 40, 40)
    assert "whole case" in decisions["sample.patch"].reason
    assert "51 x 35 x 35" in decisions["sample.patch"].reason
    assert config.prepare.spacing == (0, 0, 0)
    assert config.prepare.intensity == "zscore"
    assert config.sample.flip_prob == (0, 0, 0)


def test_ct_is_windowed_cropped_resampled_and_not_mirrored() -> None:
    config, decisions = plan(CT)
    assert config.prepare.spacing == (5.0, 0.78125, 0.78125)
    assert config.prepare.intensity == "window"
    low, high = config.prepare.window or (0, 0)
    assert low < -51 < 181 < high
    assert "-51 and 181" in decisions["prepare.window"].reason
    assert config.prepare.crop_foreground is True
    assert config.sample.flip_prob == (0, 0, 0)
    patch = config.sample.patch
    assert patch is not None
    assert patch[1] == patch[2] > patch[0]
    assert "cut down" in decisions["sample.patch"].reason


PETCT = dataclasses.replace(
    fingerprint((100, 200, 200), modality="CT", channels=("CT", "PET")),
    foreground_intensity={**CT.foreground_intensity, "p0_5": (-51.0, 0.1), "p99_5": (181.0, 9.5)},
)


def test_each_channel_is_scaled_as_its_name_asks() -> None:
    config, decisions = plan(PETCT)
    assert config.prepare.intensity == ("window", "zscore")
    assert config.prepare.window == (-109.0, 239.0)  # as of CT alone; it holds for the windowed channel
    assert decisions["prepare.intensity"].value == ("window", "zscore")
    assert re.fullmatch("CT: Hounsfield .*; PET: intensities are relative .*", decisions["prepare.intensity"].reason)
    assert decisions["prepare.window"].reason.startswith("CT: labelled voxels lie between -51 and 181")
    assert planned_run(load_run_back(config)) == config
    assert plan(PETCT, config)[0] == config


@given(st.tuples(sizes, sizes, sizes), st.lists(st.sampled_from([(2, 2, 2), (1, 2, 2), (3, 1, 4)]), max_size=7))
@example((40, 50, 60), [(2, 2, 2)] * 7)
def test_given_strides_decide_what_a_patch_is_a_multiple_of(shape: Shape, strides: list[Shape]) -> None:
    config, decisions = plan(fingerprint(shape), network(strides=tuple(strides)))
    patch, unit = config.sample.patch, unit_of(tuple(strides))
    assert patch is not None
    assert all(side >= by and side % by == 0 for side, by in zip(patch, unit, strict=True))
    assert math.prod(patch) <= max(CPU.patch_voxels, math.prod(unit))
    if math.prod(unit) > CPU.patch_voxels:
        assert "strides ask for" in decisions["sample.patch"].reason
    assert config.network.channels is not None
    assert len(config.network.channels) == len(strides) + 1


@given(st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from(["unet", "dynunet"]))
def test_any_patch_gets_a_network_with_levels_enough(patch: Shape, name: str) -> None:
    given_patch = RunConfig(sample=SampleConfig(patch=patch), network=NetworkConfig(name=name))  # type: ignore[arg-type]
    config, decisions = plan(fingerprint((51, 35, 35)), given_patch)
    assert config.sample.patch == patch
    assert decisions["sample.patch"] == Decision(patch, GIVEN, "user")
    assert config.network.strides is not None
    assert len(config.network.strides) >= (2 if name == "dynunet" else 1)
    assert not any(side % by for side, by in zip(patch, unit_of(config.network.strides), strict=True))
    assert check_run(config) == []


@pytest.mark.parametrize("cuda", [False, True])
def test_what_is_given_is_kept_and_said_to_be_given(cuda: bool) -> None:
    first, result = plan(CT, cuda=cuda)
    assert not any(decision.reason == GIVEN for decision in result.values())
    again, decisions = plan(HIPPOCAMPUS, first, cuda=not cuda)
    assert again == first
    assert {name: decision.value for name, decision in decisions.items()} == {
        name: decision.value for name, decision in result.items()
    }
    assert {decision.reason for decision in decisions.values()} == {GIVEN}


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("data", [HIPPOCAMPUS, CT, FLAT], ids=["hippocampus", "ct", "flat"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_name_alone_gives_a_network_that_can_be_built(name: str, data: Fingerprint, cuda: bool) -> None:
    config, decisions = plan(data, network(name=name), cuda=cuda)
    assert network_mistake(config.network, data.spatial_dims) is None
    assert check_run(config) == []
    unit = unit_of(config.network.strides)
    assert not any(side % by for side, by in zip(config.sample.patch, unit, strict=True))
    assert math.prod(config.sample.patch) >= 2 * math.prod(unit)
    assert ("network.kernel_size" in decisions) == ("kernel_size" in NETWORKS[name].settings)


def kernels_of_nnunet(spacing: list[float], strides: list[Shape]) -> list[list[int]]:
    """As nnU-Net's get_pool_and_conv_props has them, for strides that are known."""
    dims, kernel, kernels = len(spacing), [1] * len(spacing), []
    for stride in strides:
        for axis in range(dims):
            if kernel[axis] != 3 and spacing[axis] / min(spacing) < 2:
                kernel[axis] = 3
        kernels.append(list(kernel))
        spacing = [at * by for at, by in zip(spacing, stride, strict=True)]
    return [*kernels, [3] * dims]


@pytest.mark.parametrize("name", ["dynunet", "plainconvunet", "residualencoderunet"])
@given(
    spacing=st.tuples(mm, mm, mm),
    strides=st.lists(st.sampled_from([(1, 2, 2), (2, 2, 2), (2, 1, 1)]), min_size=2, max_size=5),
)
@example(spacing=(5.0, 0.6, 0.6), strides=[(1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2)])
@example(spacing=(2.0, 1.0, 1.0), strides=[(1, 2, 2), (2, 2, 2)])
def test_kernels_are_those_of_nnunet(name: str, spacing: Spacing, strides: list[Shape]) -> None:
    data = fingerprint((64, 64, 64), spacings=[spacing])
    config, _ = plan(data, network(name=name, strides=tuple(strides)))
    wanted = kernels_of_nnunet(list(config.prepare.spacing if any(config.prepare.spacing or ()) else spacing), strides)
    assert [list(kernel) for kernel in config.network.kernel_size or ()] == wanted


def limited(seconds: float | None) -> RunConfig:
    return RunConfig(train=TrainConfig(budget=seconds))


@pytest.mark.parametrize(
    ("seconds", "cuda", "spacing"),
    [(None, False, 1.25), (600, False, 1.25), (120, False, 1.5625), (None, True, 0.0)],
)
def test_voxels_are_as_wide_as_lets_a_patch_show_enough(seconds: float | None, cuda: bool, spacing: float) -> None:
    config, decisions = plan(atrium(), limited(seconds), cuda=cuda)
    assert config.prepare.spacing == (spacing,) * 3
    assert ("coarser than" in decisions["prepare.spacing"].reason) == bool(spacing)


def test_voxels_stay_as_they_are_where_a_patch_holds_all_that_is_labelled() -> None:
    config, _ = plan(atrium(box=(16.0, 20.0, 20.0)))
    assert config.prepare.spacing == (0.0, 0.0, 0.0)


def test_a_patch_of_all_slices_need_not_be_larger_than_what_is_labelled_in_them() -> None:
    data = fingerprint((10, 256, 216), spacings=((10.0, 1.5, 1.5),))
    for width, spacing in ((90.0, (0.0, 0.0, 0.0)), (110.0, (10.0, 3.0, 3.0))):
        data = dataclasses.replace(data, foreground_box=(100.0, width, width), kept_dice={2.0: {1: 0.96}})
        assert plan(data)[0].prepare.spacing == spacing
        assert plan(data, limited(120))[0].prepare.spacing == (10.0, 3.0, 3.0)  # where it should be twice as wide


def test_no_grid_is_taken_that_loses_a_class() -> None:
    config, decisions = plan(atrium(kept=(0.95, 0.9, 0.8, 0.99)))
    assert config.prepare.spacing == (0.9375,) * 3
    assert "organ" in decisions["prepare.spacing"].reason
    config, decisions = plan(atrium(kept=(0.5, 0.5, 0.5, 0.5)))
    assert config.prepare.spacing == (0.0, 0.0, 0.0)
    assert "organ" in decisions["prepare.spacing"].reason


def test_a_spacing_of_the_user_stays() -> None:
    config, _ = plan(atrium(), RunConfig(prepare=PrepareConfig(spacing=(0.0, 0.0, 0.0))))
    assert config.prepare.spacing == (0.0, 0.0, 0.0)


def test_few_thick_slices_are_not_padded() -> None:
    data = fingerprint((10, 256, 216), spacings=((10.0, 1.5, 1.5),))
    config, _ = plan(data)
    assert config.sample.patch[0] == 10
    assert unit_of(config.network.strides)[0] == 2
    assert config.network.strides[0] == (1, 2, 2)
    # Nor are they mixed by a rotation out of their plane.
    assert config.sample.rotate_deg == (15.0, 0.0, 0.0)
