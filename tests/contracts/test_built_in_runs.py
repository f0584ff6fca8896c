"""Every built-in network goes through a whole run: trained, resumed bit for bit, applied, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hasten.config.load import load_run
from hasten.config.networks import NETWORKS
from hasten.nets.build import build_network
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.export import export_weights
from hasten.prediction.predict import predict
from hasten.training.initial import start_of
from hasten.training.plan import build_net, plan_run
from hasten.training.run import train
from tests.training.runs import assert_same_run, at_step, checkpoint, config_of, resumed

SETTINGS: dict[str, tuple[str, ...]] = {
    "unet": ("network.channels=[4,8]", "network.num_res_units=1", "network.dropout=0.1"),
    "dynunet": (
        "network.channels=[4,8,16]", "network.deep_supervision=1", "network.kernel_size=[[1,3,3],[1,3,3],[1,5,5]]",
        "network.act=relu",
    ),
    "plainconvunet": ("network.channels=[4,8,16]", "network.deep_supervision=1", "network.dropout=0.1"),
    "residualencoderunet": ("network.channels=[4,8,8]", "network.blocks=[1,2,1]", "network.norm=batch"),
    "segresnet": ("network.channels=[4,8]", "network.dropout=0.1"),
    "segresnetds": ("network.channels=[4,8,16]", "network.deep_supervision=1"),
    "mednext": ("network.channels=[4,8,16]", "network.deep_supervision=2", "network.blocks=[1,1,2]"),
    "swinunetr": ("network.channels=[12,12,24,48,96,192]", "network.dropout=0.1"),
}  # fmt: skip
SLOW = ("plainconvunet", "segresnet", "mednext", "swinunetr")
"""Those whose outputs are of the same kind as another's, or large."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("built_in") / "set", num_cases=4, shape=(1, 64, 64))


def settings_of(name: str) -> tuple[str, ...]:
    return (
        "network.channels=null", "network.strides=null", "network.num_res_units=2", "network.dropout=0.0",
        "train.steps=4", "train.validate_every=2", "train.checkpoint_every=2", "sample.batch_size=2",
        "sample.patch=[1,64,64]", f"network.name={name}", *SETTINGS[name],
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NETWORKS],
)
def test_it_trains_resumes_bit_for_bit_predicts_and_exports(name: str, source: Path, tmp_path: Path) -> None:
    config = config_of(source, source.parent / "cache", *settings_of(name))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(config, whole)
    with pytest.raises(KeyboardInterrupt), at_step(3, "interrupt"):
        train(config, stopped)
    train(resumed(stopped), stopped, resume=True)
    assert_same_run(whole, stopped)
    assert predict(whole, source / "imagesTr", tmp_path / "masks", device="cpu")
    assert export_weights(whole, tmp_path / "net.safetensors").difference == 0
    if name == "swinunetr":  # its windows are of the traced image's size
        with pytest.raises(ValueError, match=r"ONNX does not hold this network .* use safetensors"):
            export_weights(whole, tmp_path / "net.onnx")
    else:
        assert export_weights(whole, tmp_path / "net.onnx").scale > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_its_name_alone_is_enough_for_a_plan(name: str, source: Path) -> None:
    settings = (f"data.source={source}", f"cache.dir={source.parent / 'cache'}", "train.device=cpu")
    planned = plan_run(load_run(None, (*settings, f"network.name={name}")))
    dims = planned.case_set.spatial_dims
    image = torch.randn(1, len(planned.case_set.channels), *planned.config.sample.patch[3 - dims :])
    with torch.no_grad():
        assert build_net(planned).eval()(image).shape[1:] == (planned.num_outputs, *image.shape[2:])


def nnunet_checkpoint(file: Path, weights: dict[str, Tensor]) -> Path:
    """As nnUNetTrainer.save_checkpoint writes it."""
    content: dict[str, Any] = {
        "network_weights": weights,
        "optimizer_state": torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.01, 0.99).state_dict(),
        "grad_scaler_state": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
        "logging": {"mean_fg_dice": [np.float32(0.5)], "dice_per_class_or_region": [[np.float64(0.5)]], "lrs": [0.01]},
        "_best_ema": np.float64(0.25),
        "current_epoch": 1000,
        "init_args": {
            "plans": {"dataset_name": "Dataset001"}, "configuration": "3d_fullres", "fold": 0, "dataset_json": {},
            "device": torch.device("cuda"),
        },
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1, 2),
    }  # fmt: skip
    torch.save(content, file)
    return file


@pytest.mark.parametrize("name", ["plainconvunet", "residualencoderunet"])
def test_a_run_starts_from_a_checkpoint_of_nnunet(name: str, source: Path, tmp_path: Path) -> None:
    first = config_of(source, source.parent / "cache", *settings_of(name), "network.dropout=0.0")
    planned = plan_run(first)
    trained = build_network(planned.config.network, num_channels=1, num_classes=planned.num_outputs, spatial_dims=2)
    file = nnunet_checkpoint(tmp_path / "checkpoint_final.pth", trained.state_dict())

    started = config_of(
        source,
        source.parent / "cache",
        *settings_of(name),
        "network.dropout=0.0",
        "train.steps=2",
        "train.validate_every=2",
        "sample.batch_size=2",
        f"network.weights={file}",
        "train.learning_rate=1e-12",
        "train.weight_decay=0",
    )
    start = start_of(plan_run(started))
    assert start is not None
    fit = start.fit
    assert set(fit.taken) == set(trained.state_dict())
    assert not {*fit.adapted, *fit.left, *fit.unused}
    train(started, tmp_path / "run")
    weights = checkpoint(tmp_path / "run", "best")["weights"]
    assert weights.keys() == trained.state_dict().keys()
    filters = "decoder.stages.0.convs.0.conv.weight"
    assert torch.allclose(weights[filters], trained.state_dict()[filters], atol=1e-6)
