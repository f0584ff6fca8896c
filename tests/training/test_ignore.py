"""Label maps that are annotated in part, from the settings of a run to the files of a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from hasten.config.load import load_run
from hasten.evaluation.evaluate import evaluate
from hasten.observe.clock import Clock
from hasten.prediction.predict import predict
from hasten.report.page import write_report
from hasten.training.compose import prepare_run
from hasten.training.plan import plan_run
from hasten.training.run import train
from tests.training.runs import metrics
from tests.training.test_regions import SETTINGS, tumour

IGNORE = 9


def sparse(label: np.ndarray, seed: int, share: float = 0.5, value: int = IGNORE) -> np.ndarray:
    """The label with about this share of its slices, along the last axis, not annotated."""
    kept = np.random.default_rng(seed).random(label.shape[-1]) >= share
    return np.where(kept, label, value).astype(np.uint8)


def write_pairs(folder: Path, labels: list[np.ndarray], *, declared: bool = True) -> Path:
    for number, label in enumerate(labels):
        for kind, array in (("images", tumour(number)[0]), ("labels", label)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(array, np.diag([1.0, 1.0, 1.5, 1.0])), folder / kind / f"case{number}.nii.gz")
    if declared:
        names = '{"0": "background", "1": "necrosis", "2": "oedema", "4": "enhancing"}'
        (folder / "labels.json").write_text(names)
    return folder


def config_of(source: Path, *overrides: str, regions: bool = False) -> Any:
    given = SETTINGS if regions else SETTINGS[1:]
    return load_run(None, (f"data.source={source}", f"cache.dir={source / 'cache'}", *given, *overrides))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("sparse"), [sparse(tumour(number)[1], number) for number in range(8)])


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    train(config_of(source, f"data.ignore={IGNORE}", "train.steps=60"), out)
    return out


def test_a_run_learns_from_what_is_annotated(run: Path) -> None:
    last = metrics(run, "validation")[-1]
    assert list(last["dice_per_class"]) == ["necrosis", "oedema", "enhancing"]
    assert last["dice"] > 0.6
    write_report([run], run / "report.html")
    with np.load(run / "examples.npz") as examples:
        for name in examples.files:
            if name.startswith(("label_", "prediction_")):
                assert set(np.unique(examples[name])) <= {0, 1, 2, 3}


def test_an_evaluation_takes_the_ignored_value_from_the_run(run: Path, source: Path, tmp_path: Path) -> None:
    predict(run, source / "images", tmp_path / "out", device="cpu")
    for labels in (source, source / "labels"):
        scores = evaluate(tmp_path / "out", labels, run=run, surfaces=False)
        assert list(scores.names) == ["necrosis", "oedema", "enhancing"]
        assert scores.mean("dice") > 0.6


def test_the_network_has_no_output_for_it_and_batches_hold_255(source: Path) -> None:
    config = config_of(source, f"data.ignore={IGNORE}")
    planned = plan_run(config)
    assert (planned.num_outputs, planned.class_names) == (4, ["necrosis", "oedema", "enhancing"])
    parts = prepare_run(config, Clock())
    values = set(torch.cat([parts.program.latest(step)["label"].unique() for step in range(4)]).tolist())
    assert values == {0, 1, 2, 3, 255}
    points, label = parts.arena.store.sets, parts.arena.label
    assert points is not None
    for case, (starts, counts) in enumerate(zip(points.first.tolist(), points.num.tolist(), strict=True)):
        flat = label(case).reshape(-1)
        for index, (start, count) in enumerate(zip(starts, counts, strict=True), start=1):
            assert set(flat[points.points[start : start + count].long()].tolist()) <= {index}


@pytest.mark.parametrize("preset", ["default", "nnunet", "spleen", "brats"])
def test_every_preset_keeps_the_value_through_its_interpolation(source: Path, preset: str) -> None:
    overrides = ["sample.affine_prob=0.2", "sample.noise_prob=0.1"] if preset == "default" else []
    given = [text for text in SETTINGS[1:] if not text.startswith("sample.affine") and "noise" not in text]
    config = load_run(
        None,
        (f"data.source={source}", f"cache.dir={source / 'cache'}", *given, f"data.ignore={IGNORE}",
         f"augment.preset={preset}", *overrides),
    )  # fmt: skip
    parts = prepare_run(config, Clock())
    for step in range(3):
        batch = parts.program.latest(step)
        assert set(batch["label"].unique().tolist()) <= {0, 1, 2, 3, 255}
        assert parts.step(batch["image"], batch["label"], step).isfinite()


def test_cases_that_are_ignored_as_a_whole_are_told_before_training(tmp_path: Path) -> None:
    labels = [sparse(tumour(number)[1], number, 0.3) for number in range(8)]
    everything = np.full_like(labels[0], IGNORE)
    some = write_pairs(tmp_path / "some", [everything, *labels[1:]])
    warnings = prepare_run(config_of(some, "data.ignore=9", "data.split.seed=1"), Clock()).planned.warnings
    assert any("1 cases have only ignored voxels (value 9)" in text and "case0" in text for text in warnings)
    held_out = "data.split={by: list, validation: [case0]}"
    whole = write_pairs(tmp_path / "all", [labels[0], *[everything] * 7])
    with pytest.raises(ValueError, match=r"all 7 training cases .*ignored \(value 9\)"):
        prepare_run(config_of(whole, "data.ignore=9", held_out), Clock())
