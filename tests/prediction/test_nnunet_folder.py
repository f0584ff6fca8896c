"""nnU-Net's own predictor loads the exported folder, and segments as Hasten does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.config.load import from_dict, to_dict
from hasten.config.schema import NetworkConfig
from hasten.config.settled import planned_run
from hasten.nets.build import build_network
from hasten.prediction.export import export_weights
from hasten.prediction.predict import predict
from tests.training.phantom_runs import anatomy, array_of, save, source, trained

STRIDES = ((2, 2, 2), (1, 2, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return trained(
        folder, source(folder / "data"), "sample.patch=[12, 16, 16]", "network.strides=[[2, 2, 2]]", "train.steps=2"
    )


def rewritten(run: Path, out: Path, network: dict[str, Any], prepare: dict[str, Any], **content: Any) -> Path:
    """The run with a network of random weights, of consecutive label values and without resampling."""
    kept = read_checkpoint(run / "checkpoints/best.pt")
    config = from_dict(kept["config"], where="test")
    config = dataclasses.replace(
        config,
        network=NetworkConfig(channels=(4, 8, 8), strides=STRIDES, **network),
        prepare=dataclasses.replace(config.prepare, **{"spacing": (1.5, 1.2, 1.0), "dtype": "float32", **prepare}),
    )
    given = {**kept, "labels": {"0": "background", "1": "a", "2": "b"}, **content}
    outputs = len(given.get("regions") or given["labels"])
    torch.manual_seed(3)
    built = build_network(
        planned_run(config).network, num_channels=len(given["channels"]), num_classes=outputs, spatial_dims=3
    )
    write_checkpoint(
        out / "checkpoints/best.pt",
        {**given, "config": to_dict(config), "weights": built.state_dict(), "foreground": {}},
    )
    return out


NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plainconvunet", "dropout": 0.1},
    "residual": {"name": "residualencoderunet", "blocks": (1, 2, 1), "deep_supervision": 1},
    "batch": {
        "name": "plainconvunet",
        "norm": "batch",
        "act": "relu",
        "kernel_size": ((1, 3, 3), (3, 3, 3), (3, 3, 3)),
    },
}


PREPARE: dict[str, dict[str, Any]] = {
    "plain": {"intensity": "zscore"},
    "residual": {"intensity": "window", "window": (10.0, 120.0)},
    "batch": {"intensity": "none", "orientation": None},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("shape", "least"), [((16, 16, 12), 0.999), ((24, 24, 18), 0.9)])
def test_its_own_predictor_gives_the_same_label_map(
    run: Path, tmp_path: Path, network: str, shape: tuple[int, ...], least: float
) -> None:
    """Without a border of zeros and at the spacing of the training. Of one window the label maps are the same but for
    half precision, in which nnU-Net keeps scores, when it leaves out its Gaussian weights.

    Of 1.5 patches a side, windows lie alike. But random networks see other things in each, and in half precision
    nnU-Net's weights are next to nothing in a window's corners, where they round scores to whole numbers.
    """
    predictors = pytest.importorskip("nnunetv2.inference.predict_from_raw_data")
    other = rewritten(run, tmp_path / "run", NETWORKS[network], PREPARE[network])
    export_weights(other, tmp_path / "model", "nnunet")
    image = save(tmp_path / "images/a_0000.nii.gz", 1 + anatomy(5, shape)[0].clip(0), np.diag([-1.0, -1.2, 1.5, 1.0]))
    predictor = predictors.nnUNetPredictor(
        tile_step_size=0.5, use_gaussian=shape != (16, 16, 12), use_mirroring=True,
        perform_everything_on_device=False, device=torch.device("cpu"),
        allow_tqdm=False,
    )  # fmt: skip
    predictor.initialize_from_trained_model_folder(str(tmp_path / "model"), ("0",), "checkpoint_final.pth")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    predictor.predict_from_files_sequential(str(image.parent), str(theirs), save_probabilities=False)
    [written] = predict(other, image.parent, tmp_path / "ours")
    ours, result = array_of(written), array_of(theirs / "a.nii.gz")
    assert len(np.unique(ours)) > 1
    assert ours.shape == result.shape
    assert (ours == result).mean() >= least


def test_the_files_say_what_the_network_is_and_how_images_are_prepared(run: Path, tmp_path: Path) -> None:
    """As nnU-Net 2.8 writes them; no package of nnU-Net's is needed."""
    other = rewritten(run, tmp_path / "run", NETWORKS["plain"], PREPARE["plain"])
    export_weights(other, tmp_path / "model", "nnunet")
    plans, dataset = (json.loads((tmp_path / f"model/{name}.json").read_text()) for name in ("plans", "dataset"))
    assert dataset == {
        "channel_names": {"0": "T0"},
        "labels": {"background": 0, "a": 1, "b": 2},
        "file_ending": ".nii.gz",
        "numTraining": 0,
    }
    assert plans["transpose_forward"] == plans["transpose_backward"] == [0, 1, 2]
    configuration = plans["configurations"]["3d_fullres"]
    assert configuration["spacing"] == [1.5, 1.2, 1.0]
    assert configuration["normalization_schemes"] == ["ZScoreNormalization"]
    usual = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    for name, changed in (("data", {"order": 3}), ("seg", {"is_seg": True}), ("probabilities", {})):
        assert configuration[f"resampling_fn_{name}_kwargs"] == {**usual, **changed}
    assert configuration["architecture"]["arch_kwargs"] == {
        "n_stages": 3,
        "features_per_stage": [4, 8, 8],
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [1, 2, 2]],
        "n_conv_per_stage": [2, 2, 2],
        "n_conv_per_stage_decoder": [2, 2],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": "torch.nn.modules.dropout.Dropout3d",
        "dropout_op_kwargs": {"p": 0.1},
        "nonlin": "torch.nn.modules.activation.LeakyReLU",
        "nonlin_kwargs": {"negative_slope": 0.01, "inplace": True},
    }


def test_regions_are_painted_in_nnunets_order(run: Path, tmp_path: Path) -> None:
    regions = {"whole": [1, 2], "core": [2]}
    other = rewritten(run, tmp_path / "run", NETWORKS["plain"], PREPARE["plain"], regions=regions)
    export_weights(other, tmp_path / "model", "nnunet")
    dataset = json.loads((tmp_path / "model/dataset.json").read_text())
    assert dataset["labels"] == {"background": 0, "whole": [1, 2], "core": [2]}
    assert dataset["regions_class_order"] == [1, 2]


@pytest.mark.parametrize(
    ("network", "prepare", "content", "message"),
    [
        ({"name": "unet"}, {}, {}, "network.name=unet is not nnU-Net's"),
        (NETWORKS["plain"], {"orientation": "LPS"}, {}, "not to prepare.orientation=LPS"),
        (NETWORKS["plain"], {}, {"labels": {"0": "background", "3": "a"}}, "label values without gaps"),
    ],
)
def test_what_nnunet_does_not_have(
    run: Path, tmp_path: Path, network: dict[str, Any], prepare: dict[str, Any], content: dict[str, Any], message: str
) -> None:
    other = rewritten(run, tmp_path / "run", network, prepare, **content)
    with pytest.raises(ValueError, match=message):
        export_weights(other, tmp_path / "model", "nnunet")
    assert not (tmp_path / "model").exists()
