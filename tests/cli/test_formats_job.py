"""From plan to label maps with data that is no NIfTI: TIFF stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hasten.cases.formats import read_file
from hasten.cli.main import app

SETTINGS = [
    "train.steps=4", "train.validate_every=2", "train.device=cpu", "train.precision=fp32", "train.compile=false",
    "train.channels_last=false", "sample.compile=false", "sample.batch_size=2", "sample.patch=[8,16,16]",
    "network.name=unet", "network.channels=[4,8]", "network.strides=[[2,2,2]]", "network.num_res_units=1",
    "infer.patch=[8,16,16]", "prepare.num_threads=1",
]  # fmt: skip
SHAPE = (10, 24, 20)


def run(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def anatomy(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.zeros(SHAPE, np.uint8)
    at = rng.integers(1, 4, 3)
    label[at[0] : at[0] + 5, at[1] : at[1] + 14, at[2] : at[2] + 9] = 1
    return (np.uint16(400) * label + rng.integers(0, 100, SHAPE)).astype(np.uint16), label


def _save_stack(path: Path, array: np.ndarray, description: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = (Image.fromarray(page) for page in array)
    first.save(path, save_all=True, append_images=others, description=description, x_resolution=4.0, y_resolution=4.0)


def stacks(folder: Path) -> None:
    """Of voxels in micrometres, as a microscope's; the labels say nothing of them, as many tools write them."""
    for number in range(4):
        image, label = anatomy(number)
        about = f"ImageJ=1.54\nimages=10\nslices=10\nunit=um\nspacing={0.5 + 0.1 * number}\n"
        _save_stack(folder / "images" / f"cell{number}.tif", image, about)
        _save_stack(folder / "labels" / f"cell{number}.tif", label)


def test_from_plan_to_label_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    data, plan, out, labels = (tmp_path / name for name in ("data", "plan.json", "run", "labels"))
    stacks(data)
    images = sorted((data / "images").iterdir())

    run("plan", data, "--out", plan)
    fingerprint = json.loads(plan.read_text())["fingerprint"]
    assert fingerprint["spatial_dims"] == 3
    assert fingerprint["num_cases"] == 4
    assert sum(each["cases"] for each in fingerprint["shapes"]) == 4
    assert all(sorted(each["value"]) == sorted(SHAPE) for each in fingerprint["shapes"])
    known = [sorted(each["value"]) for each in fingerprint["spacings"]]
    for path in images:
        assert any(sorted(read_file(path).spacing) == pytest.approx(own) for own in known)

    run("train", data, "--plan", plan, *SETTINGS, "--out", out)
    assert json.loads((out / "summary.json").read_text())["steps"] == 4

    assert run("predict", out, data / "images", "--out", labels).stdout == f"4 label maps in {labels}\n"
    for path in images:
        source, label = read_file(path), nib.load(labels / f"{path.name.removesuffix('.tif')}.nii.gz")
        assert label.shape == SHAPE[::-1]
        assert np.allclose(label.affine, source.affine, rtol=1e-5, atol=1e-4 * min(source.spacing))
        assert set(np.unique(np.asanyarray(label.dataobj))) <= {0, 1}
