"""A bundle predicts with MONAI alone, and as Hasten does but for rounding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import ScaleIntensityRange
from typer.testing import CliRunner

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.cli.main import app
from hasten.config.load import to_dict
from hasten.config.schema import NetworkConfig
from hasten.config.settled import planned_run
from hasten.prediction.export import export_weights
from hasten.prediction.folders import bundle_files
from hasten.prediction.predict import load_predictor, predict
from hasten.prediction.scores import first_output
from tests.prediction.test_export import CHANNELS, LABELS, config_of, network_of
from tests.processes import Program
from tests.training.phantom_runs import AFFINES, SPACING, anatomy, array_of, save, variant


def by_monai(bundle: Path, images: Path, out: Path) -> None:
    """In a process that can't import Hasten."""
    block = (
        "import sys; sys.modules.update({name: None for name in sys.modules if name.startswith('hasten')} | "
        "{'hasten': None}); from monai.bundle import run; run(**{})"
    )
    words = {
        "config_file": str(bundle / "configs/inference.json"),
        "meta_file": str(bundle / "configs/metadata.json"),
        "bundle_root": str(bundle),
        "dataset_dir": str(images),
        "output_dir": str(out),
    }
    code = block.replace("{}", repr(words))
    process = Program("-c", code)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]


@pytest.mark.parametrize(
    ("prepare", "least"),
    [
        pytest.param({"crop_foreground": True}, 0.999, marks=pytest.mark.slow),
        ({"spacing": [2.0, 1.0, 0.9]}, 0.98),
        ({"intensity": "window", "window": [0.0, 160.0], "crop_foreground": True}, 0.999),
    ],
    ids=["zscore", "resampled", "window"],
)
def test_it_predicts_as_hasten_does(run: Path, tmp_path: Path, prepare: dict[str, Any], least: float) -> None:
    other = variant(run, tmp_path / "run", **prepare)
    for name, affine in AFFINES.items():
        image = anatomy(5)[0]
        image[:2] = image.min()
        save(tmp_path / "images" / f"{name}.nii.gz", image, affine)
    in_microns = nib.load(tmp_path / "images/LPS.nii.gz")
    in_microns.header.set_zooms([1e3 * side for side in in_microns.header.get_zooms()])  # MONAI goes by these
    in_microns.set_sform(np.diag([1e3, 1e3, 1e3, 1.0]) @ in_microns.affine)
    in_microns.header.set_xyzt_units("micron")
    nib.save(in_microns, tmp_path / "images" / "microns.nii.gz")
    export_weights(other, tmp_path / "bundle", "bundle")
    by_monai(tmp_path / "bundle", tmp_path / "images", tmp_path / "theirs")
    predictor = load_predictor(other)
    for written in predict(other, tmp_path / "images", tmp_path / "ours"):
        ours, theirs = array_of(written), array_of(tmp_path / "theirs" / written.name)
        if written.name == "RAS.nii.gz":
            array = array_of(tmp_path / "images" / written.name).T
            assert np.array_equal(predictor(array, spacing=SPACING[::-1]).T, ours)
        assert len(np.unique(ours)) == 3
        assert ours.shape == theirs.shape
        assert (ours == theirs).mean() >= least, (written.name, (ours == theirs).mean())


@pytest.mark.slow
def test_channels_and_regions(run_of_two_channels: Path, tmp_path: Path) -> None:
    content = read_checkpoint(run_of_two_channels / "checkpoints/best.pt")
    content["labels"]["300"] = "c"
    content["regions"] = {"whole": [3, 7, 300], "core": [7, 300], "rim": [300]}
    write_checkpoint(tmp_path / "best.pt", content)
    for channel in range(2):
        save(tmp_path / f"images/a_{channel:04d}.nii.gz", anatomy(5)[0] * (1 + channel), AFFINES["LPS"])
    words = ["export", str(tmp_path / "best.pt"), "--format", "bundle", "--out", str(tmp_path / "bundle")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "python -m monai.bundle run" in result.output
    by_monai(tmp_path / "bundle", tmp_path / "images", tmp_path / "theirs")
    [written] = predict(tmp_path / "best.pt", tmp_path / "images", tmp_path / "ours")
    ours, theirs = array_of(written), array_of(tmp_path / "theirs/a_0000.nii.gz")
    assert ours.max() == 300
    assert (ours == theirs).mean() >= 0.999


NETWORKS: dict[str, dict[str, Any]] = {
    "unet": {"channels": (4, 8, 16), "num_res_units": 1, "dropout": 0.1},
    "dynunet": {"channels": (4, 8, 16), "deep_supervision": 1, "num_res_units": 1},
    "plainconvunet": {"channels": (4, 8, 16, 16), "deep_supervision": 1},
    "segresnet": {"channels": (4, 8, 16), "blocks": (1, 1, 2)},
    "segresnetds": {"channels": (4, 8, 16), "deep_supervision": 1},
    "mednext": {"channels": (4, 8, 16), "deep_supervision": 2, "blocks": (1, 1, 2)},
    "swinunetr": {"channels": (12, 12, 24, 48, 96, 192)},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "swinunetr" else ()) for name in NETWORKS]
)
def test_every_network_of_monai_is_built_alike(tmp_path: Path, name: str) -> None:
    settings = NETWORKS[name]
    strides = ((2, 2, 2),) * (len(settings["channels"]) - 1)
    plain = config_of()
    config = prepared(replace(plain, network=NetworkConfig(name=name, strides=strides, **settings)))  # type: ignore[arg-type]
    network = network_of(config)
    content = {"config": to_dict(config), "labels": LABELS, "channels": CHANNELS, "spatial_dims": 3}
    files = bundle_files(content, planned_run(config), network, where="best.pt")
    parser = ConfigParser(json.loads(files["configs/inference.json"]))
    (tmp_path / "model.pt").write_bytes(files["models/model.pt"])
    theirs = parser.get_parsed_content("network_def").eval()
    theirs.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    image = torch.randn(1, 2, *(64 if name == "swinunetr" else 16,) * 3)
    with torch.no_grad():
        ours = first_output(network(image), 5)
        assert torch.allclose(theirs(image), ours, rtol=0, atol=1e-5 if name == "plainconvunet" else 0)
    meta = json.loads(files["configs/metadata.json"])
    assert meta["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "background", "1": "a", "2": "b"}


def test_a_window_cuts_off_what_lies_beyond_it() -> None:
    config = prepared(config_of(), intensity="window", window=(-10.0, 20.0))
    content = {"config": to_dict(config), "labels": LABELS, "channels": CHANNELS, "spatial_dims": 3}
    files = bundle_files(content, planned_run(config), network_of(config), where="best.pt")
    steps = json.loads(files["configs/inference.json"])["preprocessing"]["transforms"]
    [window] = [each for each in steps if each["_target_"] == "ScaleIntensityRanged"]
    scale = ScaleIntensityRange(**{name: window[name] for name in ("a_min", "a_max", "b_min", "b_max", "clip")})
    assert scale(torch.tensor([-30.0, -10.0, 5.0, 20.0, 90.0])).tolist() == [0, 0, 0.5, 1, 1]


def prepared(config: Any, **settings: Any) -> Any:
    given = {"intensity": "zscore", "spacing": (0.0, 0.0, 0.0), "crop_foreground": False, **settings}
    return replace(config, prepare=replace(config.prepare, **given))


@pytest.mark.parametrize(
    ("name", "dims", "prepare", "message"),
    [
        ("residualencoderunet", 3, {}, "best.pt: network.name=residualencoderunet is not in MONAI"),
        ("unet", 2, {}, "best.pt: a run of pictures can't be a bundle"),
        ("unet", 3, {"orientation": None}, "with prepare.orientation=null can't be a bundle"),
        ("unet", 3, {"intensity": ("zscore", "none")}, "best.pt: its channels are scaled apart"),
    ],
)
def test_what_monai_alone_cannot_do(name: str, dims: int, prepare: dict[str, Any], message: str) -> None:
    plain = config_of()
    config = planned_run(prepared(replace(plain, network=replace(plain.network, name=name)), **prepare))
    content = {"labels": LABELS, "channels": CHANNELS, "spatial_dims": dims}
    with pytest.raises(ValueError, match=message):
        bundle_files(content, config, torch.nn.Identity(), where="best.pt")
