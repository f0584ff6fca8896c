from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.infer import inference_of, padded_size
from hasten.runtime.device import pick_device
from hasten.training.plan import build_net, plan_run


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slices")
    write_phantoms(folder, num_cases=4, shape=(1, 40, 60), spacing=(1.0, 1.0, 1.0))
    return folder


def config_of(source: Path, *overrides: str) -> RunConfig:
    return load_run(None, [f"data.source={source}", f"cache.dir={source / 'cache'}", "train.device=cpu", *overrides])


def message_of(config: RunConfig) -> str:
    with pytest.raises(ValueError) as raised:
        plan_run(config)
    return str(raised.value)


def test_a_run_is_planned_in_full(source: Path) -> None:
    planned = plan_run(config_of(source))
    assert planned.device == torch.device("cpu")
    assert planned.class_names == ["spleen"]
    assert (len(planned.train), len(planned.validation)) == (4, 1)
    assert not {case.id for case in planned.train} & {case.id for case in planned.validation}
    assert planned.fingerprint.shapes == ((20, 30, 40),) * 5
    assert planned.config.sample.patch is not None
    assert all(decision.reason for decision in planned.decisions.values())
    assert plan_run(config_of(source)) == planned


def test_the_network_is_the_planned_one_and_hangs_on_the_seed_alone(source: Path) -> None:
    planned = plan_run(config_of(source, "network.channels=[4, 8]", "sample.patch=[8, 16, 16]"))
    one = build_net(planned).state_dict()
    torch.rand(3)
    other = build_net(planned)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.items())
    assert other(torch.zeros(1, 1, 8, 16, 16)).shape == (1, 2, 8, 16, 16)
    settled = dataclasses.replace(planned.config.train, precision="fp32", channels_last=True)
    config = dataclasses.replace(planned.config, train=settled)
    how = inference_of(config, spatial_dims=3, device=torch.device("cpu"), classes=planned.num_outputs)
    assert how.window == (8, 16, 16)
    assert all(side % by == 0 for side, by in zip(how.window, how.divisor, strict=True))
    assert (how.precision, how.channels_last) == ("fp32", True)
    assert not how.fused_kernels
    # On a GPU in channels-last, also of a run on a CPU, which leaves them undecided.
    for fused, on in ((None, True), (True, True), (False, False)):
        card = dataclasses.replace(config, train=dataclasses.replace(settled, fused_kernels=fused))
        assert inference_of(card, spatial_dims=3, device=torch.device("cuda"), classes=2).fused_kernels is on
    # What one window holds is not cut, and nothing larger.
    assert how.whole_up_to == 8 * 16 * 16
    assert padded_size((5, 16, 12), how) == (8, 16, 16)


# Mistakes in a configuration
def test_a_patch_that_is_no_multiple_is_answered_with_the_next_one(source: Path) -> None:
    strides = "network.strides=[[1, 2, 2], [2, 2, 2]]"
    message = message_of(config_of(source, strides, "sample.patch=[9, 16, 30]"))
    assert message.startswith("sample.patch: [9, 16, 30] is not a multiple of [2, 4, 4]")
    assert message.endswith("use [10, 16, 32]")
    message = message_of(config_of(source, strides, "sample.patch=[8, 16, 16]", "infer.patch=[8, 18, 16]"))
    assert message.startswith("infer.patch: [8, 18, 16]")
    assert message.endswith("use [8, 20, 16]")


def test_2d_images_take_2d_patches_and_strides(flat: Path) -> None:
    planned = plan_run(config_of(flat))
    assert planned.config.sample.patch is not None
    assert planned.config.sample.patch[0] == 1
    message = message_of(config_of(flat, "sample.patch=[8, 16, 16]"))
    assert message == "sample.patch: [8, 16, 16] is 3-D; use [1, 16, 16] for 2-D images"
    message = message_of(config_of(flat, "network.strides=[[2, 2, 2]]", "sample.patch=[1, 16, 16]"))
    assert "network.strides" in message
    assert "[[1, 2, 2]]" in message
    planned = plan_run(config_of(flat, "network.name=segresnet", "sample.patch=[1, 16, 16]"))
    assert build_net(planned)(torch.zeros(2, 1, 16, 16)).shape == (2, 2, 16, 16)


@pytest.mark.parametrize(
    ("name", "count", "remedy"),
    [
        ("cuda", 0, "use auto or cpu"),
        ("cuda:2", 2, "use cuda:0, cuda:1, auto or cpu"),
        ("gpu", 1, "xpu or xpu:N (Intel)"),
    ],
)
def test_a_device_that_is_not_there_is_answered_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=f"^train.device={name}: ") as raised:
        pick_device(name)
    assert str(raised.value).endswith(remedy)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sample.batch_size=1000000000", "sample.batch_size: 1000000000 patches of "),
        ("sample.patch=[100000,100000,100000]", "sample.patch, sample.batch_size: .* take 9.* TiB"),
        ("infer.patch=[100000,100000,100000]", "infer.patch: .* TiB, but cpu has"),
        ("network.num_res_units=1000000", "network.num_res_units: must be at most 1000"),
    ],
)
def test_sizes_that_no_memory_holds(source: Path, override: str, message: str) -> None:
    others = ["sample.patch=[16,16,16]", "sample.batch_size=2", "network.channels=[4,8]", "network.strides=[[2,2,2]]"]
    kept = [text for text in others if text.partition("=")[0] != override.partition("=")[0]]
    with pytest.raises(ValueError, match=message):
        plan_run(config_of(source, *kept, override))


def test_cases_with_voxels_of_another_unit_are_named(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "set", ignore=shutil.ignore_patterns("cache"))
    for name in ("imagesTr", "labelsTr"):
        path = folder / name / "phantom_002.nii.gz"
        image = nibabel.load(path)
        affine = np.diag([10.0, 10.0, 10.0, 1.0]) @ image.affine
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), path)
    (warning,) = [each for each in plan_run(config_of(folder)).warnings if "times larger" in each]
    assert "phantom_002 (20 x 10 x 10 mm)" in warning
    assert "phantom_001" not in warning
