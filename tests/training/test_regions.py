"""Classes that overlap, from the settings of a run to the files of a prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from hasten.config.load import load_run
from hasten.observe.rundir import SUMMARY_JSON
from hasten.prediction.predict import predict
from hasten.training.plan import plan_run
from hasten.training.run import train
from tests.training.runs import checkpoint, metrics

REGIONS = {"whole tumour": (1, 2, 4), "tumour core": (1, 4), "enhancing": (4,)}
"""As BraTS numbers them: 1 is necrosis, 2 oedema, 4 enhancing."""
PAINTED = {"whole tumour": 2, "tumour core": 1, "enhancing": 4}
SIDE = 16
SETTINGS = (
    "data.regions={whole tumour: [1, 2, 4], tumour core: [1, 4], enhancing: [4]}",
    "data.split.fraction=0.25",
    f"sample.patch=[{SIDE},{SIDE},{SIDE}]",
    "sample.batch_size=4",
    "sample.affine_prob=0",
    "sample.noise_prob=0",
    "network.channels=[8,16]",
    "network.strides=[[2,2,2]]",
    "network.num_res_units=1",
    "train.ema=0",
    "train.learning_rate=0.02",
    "train.validate_every=20",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "train.device=cpu",
)


def tumour(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shells about a centre, the inner the brighter: (x, y, z) image and label of 0, 1, 2 and 4."""
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij")
    radius = np.sqrt(sum((axis - centre) ** 2 for axis, centre in zip(axes, rng.uniform(6, 10, 3), strict=True)))
    label = np.select([radius < 2.5, radius < 4, radius < 6], [4, 1, 2], 0).astype(np.uint8)
    bright = np.select([label == 4, label == 1, label == 2], [3.0, 2.0, 1.0], 0.0)
    return (bright + rng.normal(0, 0.2, label.shape)).astype(np.float32), label


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tumours")
    for number in range(8):
        for kind, array in zip(("images", "labels"), tumour(number), strict=True):
            (folder / kind).mkdir(exist_ok=True)
            nib.save(nib.Nifti1Image(array, np.diag([1.0, 1.0, 1.5, 1.0])), folder / kind / f"case{number}.nii.gz")
    (folder / "labels.json").write_text('{"0": "background", "1": "necrosis", "2": "oedema", "4": "enhancing"}')
    return folder


def config_of(source: Path, *overrides: str) -> Any:
    given = (f"data.source={source}", f"cache.dir={source / 'cache'}", *SETTINGS, *overrides)
    return load_run(None, given)


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    train(config_of(source, "train.steps=60"), out)
    return out


def test_three_nested_regions_are_learned_and_named(run: Path) -> None:
    last = metrics(run, "validation")[-1]
    assert list(last["dice_per_class"]) == list(last["iou_per_class"]) == list(REGIONS)
    assert min(last["dice_per_class"].values()) > 0.6
    assert last["dice"] > 0.8
    assert all(last["iou_per_class"][name] < score for name, score in last["dice_per_class"].items())
    summary = json.loads((run / SUMMARY_JSON).read_text())
    assert summary["best"]["metric"] == "mean_dice"
    assert summary["best"]["value"] == max(line["dice"] for line in metrics(run, "validation"))


@pytest.fixture(scope="module")
def predicted(run: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predicted")
    assert len(predict(run, source / "images", out, probabilities=True)) == 8
    return out


def voxels(path: Path) -> np.ndarray:
    return np.asarray(nib.load(path).dataobj)


def masks(path: Path) -> dict[str, np.ndarray]:
    """Where each region's probability is above 0.5, in nibabel's order of axes."""
    with np.load(path) as file:
        return {str(name): chance.T > 0.5 for name, chance in zip(file["classes"], file["probabilities"], strict=True)}


def test_the_label_map_is_painted_from_the_regions(predicted: Path) -> None:
    for number in range(8):
        name = f"case{number}.nii.gz"
        label = voxels(predicted / name)
        painted = np.zeros_like(label)
        of_regions = masks(predicted / f"case{number}.npz")
        for region, value in PAINTED.items():
            painted[of_regions[region]] = value
        assert np.array_equal(painted, label)
        assert np.array_equal(nib.load(predicted / name).affine, np.diag([1.0, 1.0, 1.5, 1.0]))


def test_the_masks_have_the_dice_that_the_best_validation_told(predicted: Path, run: Path, source: Path) -> None:
    held_out = plan_run(config_of(source)).validation
    scores = {"dice": [], "iou": []}
    for case in held_out:
        label = voxels(source / "labels" / f"{case.id}.nii.gz")
        of_regions = masks(predicted / f"{case.id}.npz")
        for region, members in REGIONS.items():
            mask, truth = of_regions[region], np.isin(label, members)
            both = (mask & truth).sum()
            scores["dice"].append(2 * both / (mask.sum() + truth.sum()))
            scores["iou"].append(both / (mask | truth).sum())
    best = checkpoint(run, "best")
    assert np.mean(scores["dice"]) == pytest.approx(best["dice"])
    assert np.mean(scores["iou"]) == pytest.approx(best["iou"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.regions={tumour: [3]}", r'^data\.regions: "tumour" holds 3, .*0, 1, 2, 4'),
        ("loss.include_background=true", r"^loss\.include_background: regions have no background"),
        ("data.region_values={oedema: 2}", r'data\.region_values names "oedema", which is no region'),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_trained(source: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_run(config_of(source, override))
