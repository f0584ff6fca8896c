"""nnU-Net's own trainer under the doctor: the rule at both sides of its threshold."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.study.script.findings.loading import nnunet
from hasten.study.script.records import ProcessRecord, as_record

STEPS = 20


def record(
    parts: dict[str, float], *, cuda: bool = True, hasten: bool = False, arguments: str = "4 2d 0"
) -> ProcessRecord:
    """Steps of 100 ms."""
    step = {"seconds": 0.1, "parts": {"forward": 0.1 - sum(parts.values()), **parts}, "cpu": 0.1, "synced": False}
    raw: dict[str, Any] = {"steps": [step] * STEPS, "devices": {"cuda" if cuda else "cpu": STEPS}}
    return as_record(raw | {"nnunet": {"arguments": arguments.split(), "hasten": hasten}})


@pytest.mark.parametrize(("cuda", "gain"), [(True, 2.0), (False, 1.25)])
def test_a_wait_names_this_trainer_and_its_gain(cuda: bool, gain: float) -> None:
    [result] = nnunet(record({"wait": 0.04, "device_reads": 0.01}, cuda=cuda))
    assert result.name == "nnunet-loader"
    assert result.level == "finding"
    assert result.gain == pytest.approx(gain)
    assert result.cost_s == pytest.approx(0.05)
    assert result.cure.endswith("hasten nnunet train 4 2d 0")


def test_a_short_wait_is_left_alone() -> None:
    assert nnunet(record({"wait": 0.009})) == []


def test_variants_have_one_with_hasten() -> None:
    [plain] = nnunet(record({"wait": 0.04}, arguments="4 2d 0 -tr nnUNetTrainer --c"))
    [short] = nnunet(record({"wait": 0.04}, arguments="4 2d 0 -tr nnUNetTrainer_250epochs --c"))
    assert plain.cure.endswith("train 4 2d 0 --c")
    assert short.cure.endswith("train 4 2d 0 -tr nnUNetTrainerHasten_250epochs --c")


def test_hastens_trainer_and_other_scripts_are_left_alone() -> None:
    assert nnunet(record({"wait": 0.04}, hasten=True)) == []
    assert nnunet(as_record({"steps": [], "devices": {"cpu": 1}})) == []
