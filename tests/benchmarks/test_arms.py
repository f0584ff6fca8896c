from __future__ import annotations

import json
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.peers import monai_fast, regular
from benchmarks.peers.common import (
    Record,
    arm_arguments,
    case_dice,
    deterministic,
    list_cases,
    mean_dice,
    network,
    random_crop,
    read_split,
)

ROOT = Path(__file__).parents[2]


def test_dice_agrees_with_monai() -> None:
    from monai.metrics import DiceMetric

    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, 4, (5, 1, 6, 5, 4), generator=generator)
    label = torch.randint(0, 4, (5, 1, 6, 5, 4), generator=generator)
    label[1][label[1] == 2] = 0  # a class that one case lacks
    prediction[2][prediction[2] == 3] = 0
    mine = [case_dice(p, t, 4) for p, t in zip(prediction, label, strict=True)]
    metric = DiceMetric(include_background=False, reduction="mean", num_classes=4)
    metric(prediction, label)
    theirs = metric.get_buffer()
    assert math.isnan(mine[1][1])
    torch.testing.assert_close(torch.tensor(mine), theirs.to(torch.get_default_dtype()), equal_nan=True)
    assert mean_dice(mine)[0] == pytest.approx(metric.aggregate().item(), abs=1e-6)
    assert mean_dice(mine)[1] == pytest.approx(theirs.nanmean(0).tolist(), abs=1e-6)


def test_split(boxes: Path, tmp_path: Path) -> None:
    rows, num_classes = list_cases(boxes)
    assert num_classes == 3
    parts = read_split(rows, None)
    assert (len(parts["train"]), len(parts["validation"])) == (3, 1)
    assert parts == read_split(rows[::-1], None)
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"train": ["case_002", "case_000"], "validation": ["case_001"]}))
    assert [row["id"] for row in read_split(rows, split)["train"]] == ["case_002", "case_000"]
    split.write_text(json.dumps({"train": ["case_009"], "validation": ["case_001"]}))
    with pytest.raises(ValueError, match="case_009"):
        read_split(rows, split)


def test_record_of_a_run(tmp_path: Path) -> None:
    given = Namespace(out=tmp_path / "r.json", seed=3, target=0.9, data=tmp_path)
    record = Record("arm", given, "notes")
    record.validated(1, [[0.8, math.nan], [0.9, 0.8]])
    record.steps = 7
    record.validated(2, [[0.9, 0.8], [0.95, 0.85]])
    result = json.loads(given.out.read_text())
    assert [point["dice"] for point in result["curve"]] == [0.825, 0.875]
    assert result["curve"][0]["per_class"] == [0.85, 0.8]
    assert result["time_to"]["0.80"] == result["curve"][0]["seconds"]
    assert result["time_to"]["0.87"] == result["curve"][1]["seconds"]
    assert result["time_to"]["0.88"] is None
    assert result["time_to"]["0.90"] is None
    assert result["steps"] == 7
    assert result["seed"] == 3


def test_patch_is_depth_first(ct_boxes: Path) -> None:
    from monai.transforms import Compose

    rows, _ = list_cases(ct_boxes)
    spacing, patch = (2.0, 1.0, 1.0), (8, 12, 16)
    chain = deterministic("ct", spacing=spacing, pad=patch, indices=True)
    prepared = Compose(chain)(rows[0])
    assert prepared["image"].shape == (1, 39, 36, 16)  # x y z; the air at x = 0 is cropped, z is halved
    assert float(prepared["image"].min()) >= 0
    assert float(prepared["image"].max()) <= 1
    crops = random_crop(patch, 2)(prepared)
    assert [tuple(crop["image"].shape) for crop in crops] == [(1, 16, 12, 8)] * 2


def test_flags() -> None:
    given = arm_arguments("x", ["--data", "d", "--out", "o", "--kind", "ct", "--patch", "8", "12", "16"])
    assert given.patch == given.roi == (8, 12, 16)
    assert given.spacing == (2.0, 1.5, 1.5)
    given = arm_arguments("x", ["--data", "d", "--out", "o"])
    assert (given.patch, given.roi, given.spacing) == ((32, 32, 32), (32, 32, 32), None)


def test_network_ends_in_one_channel_a_class() -> None:
    assert network(3)(torch.zeros(1, 1, 8, 16, 8)).shape == (1, 3, 8, 16, 8)


@pytest.fixture
def _global_state_of_monai() -> Iterator[None]:
    """The arms are scripts: they seed, set threads and switch metadata off for their whole process."""
    threads = torch.get_num_threads()
    yield
    from monai.data import set_track_meta
    from monai.utils import set_determinism

    set_track_meta(True)
    set_determinism(None)
    torch.set_num_threads(threads)


# Without autocast: with torch 2.13.0 on a CPU, the bf16 weight gradient of a 3^3 convolution over 2^3 voxels, which is
# what the deepest level sees of a patch of 16^3, holds uninitialised memory now and then.
TINY = ["--patch", "16", "16", "16", "--amp", "off", "--threads", "1", "--workers", "1", "--target", "1.1"]


@pytest.mark.usefixtures("_global_state_of_monai")
@pytest.mark.parametrize(("arm", "kind"), [(monai_fast, "mr"), (regular, "mr"), (monai_fast, "ct"), (regular, "ct")])
def test_arm_trains(arm: ModuleType, kind: str, boxes: Path, ct_boxes: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    flags = [*TINY, "--max-seconds", "100000", "--max-epochs", "2", "--kind", kind]
    if kind == "ct":
        flags += ["--spacing", "1.5", "1.5", "1.5", "--validate-every", "2"]
    arm.main(["--data", str(boxes if kind == "mr" else ct_boxes), "--out", str(out), *flags])
    result = json.loads(out.read_text())
    assert result["arm"] == arm.__name__.rsplit(".", 1)[1]
    assert result["stopped"] == "max_epochs"
    assert result["steps"] == 4  # 3 cases, 2 a batch, 2 epochs
    assert [point["epoch"] for point in result["curve"]] == ([1, 2] if kind == "mr" else [2])
    assert len(result["seconds_per_epoch"]) == 2
    assert all(0 <= point["dice"] <= 1 and len(point["per_class"]) == 2 for point in result["curve"])
    assert all(result["seconds"][part] > 0 for part in ("import", "train", "validate"))
    assert (result["seconds"]["cache"] > 0) == (arm is monai_fast)


@pytest.mark.usefixtures("_global_state_of_monai")
def test_same_seed_same_run(boxes: Path, tmp_path: Path) -> None:
    curves = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.json"
        flags = [*TINY, "--max-seconds", "100000", "--max-epochs", "1"]
        monai_fast.main(["--data", str(boxes), "--out", str(out), *flags])
        curves.append([point["per_class"] for point in json.loads(out.read_text())["curve"]])
    assert curves[0] == curves[1]


@pytest.mark.usefixtures("_global_state_of_monai")
def test_time_runs_out_in_an_epoch(boxes: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    monai_fast.main(["--data", str(boxes), "--out", str(out), *TINY, "--max-seconds", "0"])
    result = json.loads(out.read_text())
    assert (result["steps"], result["stopped"], len(result["curve"])) == (1, "max_seconds", 1)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["monai_fast", "regular"])
def test_arm_as_a_program(arm: str, boxes: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    flags = ["--target", "1.1", "--max-epochs", "2", "--data", str(boxes), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.peers.{arm}", *flags], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    seconds = json.loads(out.read_text())["seconds"]
    assert sum(seconds[part] for part in ("import", "cache", "train", "validate")) <= seconds["total"]
