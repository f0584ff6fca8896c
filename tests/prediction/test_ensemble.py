from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.cases.nifti import read_nifti
from hasten.cases.read import read_image
from hasten.cases.types import Case
from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.weights import read_model
from hasten.config.load import load_run
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.ensemble import Ensemble, read_members
from hasten.prediction.infer import Inference, infer_labels
from hasten.prediction.model import load_model
from hasten.prediction.postprocess import Cleaning, read_cleanings, write_cleanings
from hasten.prediction.predict import predict
from hasten.prepare.case import prepare_case, restore_label
from hasten.training.run import train
from tests.prediction.window_scores import sliding_window
from tests.training.runs import SETTINGS


def how(whole_up_to: int, *, overlapping: bool) -> Inference:
    return Inference(
        window=(8, 8, 8), divisor=(1, 1, 1), whole_up_to=whole_up_to, overlap=0.5, batch_size=2, precision="fp32",
        channels_last=False, spatial_dims=3, device=torch.device("cpu"), overlapping=overlapping,
    )  # fmt: skip


@given(
    st.tuples(*[st.integers(5, 13)] * 3), st.integers(1, 3), st.sampled_from((0, 10**6)), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_is_the_average_by_hand(
    shape: tuple[int, int, int], count: int, whole_up_to: int, overlapping: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    networks = [nn.Conv3d(1, 3, 1) for _ in range(count)]  # voxel by voxel, so that windows make no difference
    volume = torch.randn(1, *shape)
    ((_, result),) = infer_labels(
        Ensemble(networks, overlapping=overlapping), [volume], how(whole_up_to, overlapping=overlapping)
    )
    with torch.inference_mode():
        scores = [network(volume[None])[0] for network in networks]
    if overlapping:
        mean = torch.stack([each.sigmoid() for each in scores]).mean(0)
        clear = (mean - 0.5).abs() > 1e-5
        assert result.shape == (3, *shape)
        assert torch.equal(result[clear], (mean > 0.5)[clear])
    else:
        mean = torch.stack([each.softmax(0) for each in scores]).mean(0)
        top = mean.topk(2, 0).values
        clear = top[0] - top[1] > 1e-5
        assert torch.equal(result[clear], mean.argmax(0)[clear].to(torch.uint8))


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of two folds as a cross-validation leaves it, and the data."""
    folder = tmp_path_factory.mktemp("folds")
    write_phantoms(folder / "data", num_cases=6, shape=(16, 18, 20))
    for fold in range(2):
        split = ["data.split.by=fold", "data.split.num_folds=2", f"data.split.fold={fold}"]
        split += ["train.steps=8", "prepare.spacing=[0,0,0]"]
        source = [f"data.source={folder / 'data'}", f"cache.dir={folder / 'cache'}"]
        train(load_run(None, [*source, *SETTINGS, *split]), folder / f"cv/fold{fold}")
    (folder / "cv/cv.yaml").write_text("")
    return folder / "cv", folder / "data"


def image_of(data: Path) -> Path:
    return sorted((data / "imagesTr").iterdir())[0]


def test_all_folds_of_a_cross_validation_decide(folds: tuple[Path, Path], tmp_path: Path) -> None:
    cv, data = folds
    [written] = predict(cv, image_of(data), tmp_path / "out")
    networks = []
    volume = read_image(Case(id="one", image=(image_of(data),)))
    for fold in range(2):
        model = load_model(read_model(cv / f"fold{fold}"), where="", device="cpu")
        prepared = prepare_case(volume, None, id="one", spec=model.prepare)
        networks.append(model.network)

    def mean(image: torch.Tensor) -> torch.Tensor:
        return torch.stack([network(image).float().softmax(1) for network in networks]).mean(0)

    scores = sliding_window(mean, torch.from_numpy(prepared.image), model.inference)  # type: ignore[arg-type]
    label = scores.argmax(0).to(torch.uint8).numpy()
    assert np.array_equal(read_nifti(written).array[0], restore_label(label, prepared.geometry, (0, 1)))
    assert [member.where.parent.parent.name for member in read_members(cv)] == ["fold0", "fold1"]


def test_runs_of_folds_have_the_post_processing_of_all_folds(folds: tuple[Path, Path]) -> None:
    cv, _ = folds
    write_cleanings(cv, {1: Cleaning(min_volume_mm3=1e6)})
    try:
        for run in (cv, cv / "fold0", [cv / "fold0", cv / "fold1"]):
            assert read_cleanings(run, {"0": "background", "1": "a"}) == {1: Cleaning(min_volume_mm3=1e6)}
    finally:
        (cv / "postprocessing.yaml").unlink()


def edited(cv: Path, out: Path, section: str, **fields: Any) -> Path:
    shutil.copytree(cv, out)
    content = read_checkpoint(out / "fold1/checkpoints/best.pt")
    (content["config"][section] if section else content).update(fields)
    write_checkpoint(out / "fold1/checkpoints/best.pt", content)
    return out


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        ("train", {"learning_rate": 0.5}, "train.learning_rate=0.5 instead of"),
        ("data", {"source": "/elsewhere"}, 'data.source="?/elsewhere'),
        ("prepare", {"spacing": [2.0, 2.0, 2.0]}, r"prepare.spacing=\[2.0, 2.0, 2.0\] instead of"),
        ("", {"labels": {"0": "background", "1": "other"}}, "labels .*other.* instead of"),
    ],
)
def test_folds_of_other_settings_or_data_are_refused(
    folds: tuple[Path, Path], tmp_path: Path, section: str, fields: dict[str, Any], message: str
) -> None:
    cv, data = folds
    other = edited(cv, tmp_path / "cv", section, **fields)
    with pytest.raises(ValueError, match=message) as error:
        predict(other, image_of(data), tmp_path / "out")
    assert "fold1/checkpoints/best.pt" in str(error.value)
    assert not (tmp_path / "out").exists()
