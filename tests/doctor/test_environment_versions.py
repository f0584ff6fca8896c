"""The table of known bad pairs, over a matrix of versions."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from hasten.doctor.environment.versions import RULES, Versions, check_versions, cudnn_text, numbers, versions_here

SOUND = Versions(
    python="3.12.4", torch="2.13.0+cu130", cuda="13.0", cudnn="9.20.0", driver="590.10", torchvision="0.28.0+cu130",
    monai="1.6.1", gpu=True,
)  # fmt: skip


def amiss(**changed: object) -> set[str]:
    result = check_versions(dataclasses.replace(SOUND, **changed))  # type: ignore[arg-type]
    return {check.name for check in result if check.level != "ok"}


def test_what_is_sound_is_not_called_amiss():
    assert amiss() == set()
    plain = Versions(python="3.11.7", torch="2.12.1+cpu", monai="1.6.1")
    assert [check.level for check in check_versions(plain)] == ["ok"] * 3


@pytest.mark.parametrize(
    ("torch", "cudnn", "wrong"),
    [
        ("2.8.0", "9.10.2", {"torch-unsupported", "conv3d-bf16-wrong", "conv3d-tf32-broken"}),
        ("2.9.0", "9.10.2", {"torch-unsupported", "conv3d-bf16-wrong", "conv3d-tf32-broken"}),
        ("2.9.0", "9.16.0", {"torch-unsupported"}),
        ("2.9.1", "9.10.2", {"torch-unsupported", "conv3d-bf16-wrong", "conv3d-tf32-broken"}),
        ("2.9.1", "9.15.0", {"torch-unsupported", "conv3d-tf32-broken"}),
        ("2.10.0", "9.7.1", set()),
        ("2.10.0", "9.8.0", {"conv3d-bf16-wrong"}),
        ("2.10.0", "9.14.9", {"conv3d-bf16-wrong", "conv3d-tf32-broken"}),
        ("2.10.0", "9.15.1", {"conv3d-tf32-broken"}),
        ("2.10.0", "9.16.0", set()),
        ("2.13.0", "9.20.0", set()),
        ("2.13.0", None, set()),
    ],
)
def test_torch_and_cudnn(torch, cudnn, wrong):
    assert amiss(torch=torch, cudnn=cudnn, torchvision=None) == wrong


@pytest.mark.parametrize(
    ("torch", "vision", "wrong"),
    [
        ("2.13.0+cpu", "0.28.0", False),
        ("2.13.0+cpu", "0.28.0+cpu", False),
        ("2.13.0+cpu", "0.28.0+cu130", True),
        ("2.13.0+cu130", "0.27.1+cu130", True),
        ("2.10.0", "0.25.0", False),
        ("2.10.0", "0.28.0", True),
        ("2.13.0", None, False),
    ],
)
def test_torchvision_goes_with_one_torch(torch, vision, wrong):
    assert ("torchvision-mismatch" in amiss(torch=torch, torchvision=vision)) is wrong


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"python": "3.10.9"}, "python-unsupported"),
        ({"monai": "1.5.2"}, "monai-unsupported"),
        ({"driver": "570.1"}, "driver-too-old"),
        ({"cuda": "12.8", "driver": "520.61.05"}, "driver-too-old"),
        ({"gpu": False}, "gpu-unused"),
        ({"gpu": False, "cuda": None, "cudnn": None, "torch": "2.13.0+cpu", "torchvision": None}, "gpu-unused"),
        ({"cpu_bf16": True}, "cpu-bf16-tiny-maps"),
    ],
)
def test_other_pairs(changed, name):
    assert amiss(**changed) == {name}


def test_the_processors_fault_hangs_on_the_processor_and_torch():
    assert amiss(cpu_bf16=True, torch="2.12.0", torchvision=None) == set()
    assert amiss(cpu_bf16=True, torch="2.14.0", torchvision=None) == set()


def test_every_combination_is_answered_and_every_fault_has_a_remedy():
    torches, cudnns = (
        ("2.7.1", "2.9.0", "2.9.1", "2.10.0", "2.13.0+cpu"),
        (None, "9.1.0", "9.10.2", "9.15", "9.20.0.48"),
    )
    for torch, cudnn, vision in itertools.product(torches, cudnns, (None, "0.24.0", "0.28.0+cu130")):
        result = check_versions(dataclasses.replace(SOUND, torch=torch, cudnn=cudnn, torchvision=vision))
        assert all(check.remedy for check in result if check.level != "ok")
    assert all(rule.source and rule.remedy and rule.spans for rule in RULES)


def test_versions_are_compared_by_their_numbers():
    assert numbers("2.10.0+cu128") == (2, 10) > numbers("2.9.1")
    assert numbers("2.13.0a0+git1") == (2, 13)
    assert numbers("unknown") == ()
    assert [cudnn_text(value) for value in (8902, 91002, 92000)] == ["8.9.2", "9.10.2", "9.20.0"]


def test_this_process_knows_its_versions():
    here = versions_here()
    assert here.torch.startswith("2.")
    assert here.monai is not None
    assert (here.cudnn is None) or here.cuda is not None
