"""The trainings that the doctor is judged on have the fault that they are said to have, and the judge can say no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.doctors import train
from benchmarks.doctors.judge import RUN_CAUSES, SCRIPT_CAUSES, _outcome, _reading, _run_fault
from hasten.config.load import load_run
from hasten.study.finding import Finding
from hasten.study.split import Split


@pytest.fixture(scope="module")
def rows(boxes: Path) -> list[dict[str, str]]:
    listing = json.loads((boxes / "dataset.json").read_text())["training"]
    return [{key: str(boxes / row[key]) for key in ("image", "label")} for row in listing[:2]]


@pytest.mark.parametrize("fault", [fault for fault in train.FAULTS if fault != "tiny-batch"])
@pytest.mark.parametrize("make", [train.plain_loader, train.monai_loader])
def test_each_loader_gives_crops(make, fault, rows, monkeypatch):
    monkeypatch.setattr(train, "READ_DELAY", 0.0)
    monkeypatch.setattr(train, "PASSES", dict.fromkeys(train.PASSES, 1))
    loader = make(rows, 16, fault, 2)
    assert loader.num_workers == (1 if fault in ("slow-disk", "heavy-transform") else 0)
    loader.num_workers = 0
    loader.prefetch_factor = None
    batch = next(iter(loader))
    image, label = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
    assert image.shape == label.shape == (2, 1, 16, 16, 16)


def test_every_fault_has_a_cause_and_settings_that_load():
    assert set(SCRIPT_CAUSES) == set(train.FAULTS) - {"none"}
    for fault in ("none", *RUN_CAUSES):
        settings, wrapped = _run_fault(fault)
        load_run(None, settings)
        assert settings or wrapped or fault == "none"


def split(**parts: float) -> Split:
    return Split(steps=20, step_s=sum(parts.values()), parts=parts)


@pytest.mark.parametrize(
    ("parts", "names", "named"),
    [
        ({"forward": 0.05, "wait": 0.05}, ["no-workers"], True),
        ({"forward": 0.05, "wait": 0.05}, ["host-read"], False),
        ({"forward": 0.05, "validation": 0.05}, ["no-workers"], False),
        ({"forward": 0.1}, ["no-workers"], False),
    ],
)
def test_verdict_and_finding_must_both_be_right(parts, names, named, capsys):
    found = [Finding(name=name, title="", where="", cure="") for name in names]
    assert _outcome("plain", "zero-workers", split(**parts), found, SCRIPT_CAUSES)["named"] is named


def test_a_training_without_a_fault_must_be_called_compute_bound(capsys):
    assert _outcome("plain", "none", split(forward=0.1), [], SCRIPT_CAUSES)["named"]
    assert not _outcome("plain", "none", split(forward=0.05, wait=0.05), [], SCRIPT_CAUSES)["named"]


def test_the_reading_step_is_the_step(rows):
    image = train.read(rows[0], "none")["image"]
    assert _reading(lambda image, label, index: index)(image[None, :, :2, :2, :2], None, 7) == 7
