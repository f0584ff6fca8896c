from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.checkpoint.file import write_checkpoint
from hasten.checkpoint.weights import describe_mismatch, load_weights, read_model, with_network_of_weights
from hasten.config.load import load_run, to_dict
from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network

NAMES = ("unet", "dynunet", "segresnet", "plainconvunet", "residualencoderunet")


def network(name: str = "unet", *, image: int = 1, classes: int = 3, dims: int = 3, **settings: Any) -> nn.Module:
    stride = (2, 2, 2) if dims == 3 else (1, 2, 2)
    settings = {"channels": (4, 8, 16), "strides": (stride, stride), **settings}
    config = NetworkConfig(name=name, **settings)  # type: ignore[arg-type]
    return build_network(config, num_channels=image, num_classes=classes, spatial_dims=dims)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_the_same_network_are_loaded(name: str) -> None:
    one, other = network(name), network(name)
    assert describe_mismatch(one.state_dict(), other.state_dict()) is None
    load_weights(one, other.state_dict())
    for key, value in other.state_dict().items():
        assert torch.equal(one.state_dict()[key], value)


def test_a_refused_state_changes_nothing() -> None:
    one, other = network(), network(classes=2)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    with pytest.raises(ValueError, match=r"^my\.pt: of another network \(.*of another shape: "):
        load_weights(one, other.state_dict(), where="my.pt")
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())


def test_a_model_is_read_from_a_run_or_a_file(tmp_path: Path) -> None:
    best = tmp_path / "checkpoints" / "best.pt"
    content = {"weights": {}, "config": {"train": {}}, "labels": {}, "channels": [], "spatial_dims": 3, "step": 3}
    write_checkpoint(best, content)
    assert read_model(tmp_path)["step"] == read_model(str(best))["step"] == 3
    write_checkpoint(best.with_name("last.pt"), {"network": {}, "step": 3})
    with pytest.raises(ValueError, match=r"last\.pt: holds the state of a run to resume, not a model"):
        read_model(best.with_name("last.pt"))
    with pytest.raises(ValueError, match="absent: no such run"):
        read_model(tmp_path / "absent")
    with pytest.raises(ValueError, match="no such checkpoint"):
        read_model(best.parent)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    one, other = network(), network()
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    name, weight = list(other.named_parameters())[2]
    with torch.no_grad():
        weight.view(-1)[0] = value
    with pytest.raises(ValueError, match=rf"^my\.pt: .*NaN or infinite .*1 weight: {re.escape(name)}; "):
        load_weights(one, other.state_dict(), where="my.pt")
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.state_dict().items())


SAVED = ("network.name=unet", "network.channels=[8, 16]", "network.strides=[[2, 2, 2]]", "network.num_res_units=1")


@pytest.mark.parametrize(
    ("own", "dims", "wanted"),
    [
        ((), 3, {"name": "unet", "channels": (8, 16), "strides": ((2, 2, 2),), "num_res_units": 1}),
        (("network.dropout=0.5",), 3, {"name": "unet", "channels": (8, 16), "dropout": 0.5}),
        (("network.channels=[4, 8]",), 3, {"channels": (4, 8), "strides": ((2, 2, 2),)}),
        (("network.name=dynunet",), 3, {"name": "dynunet", "channels": None, "num_res_units": 2}),
        ((), 2, {"name": "unet", "channels": (8, 16), "strides": None}),
    ],
)
def test_a_run_that_starts_from_another_has_its_network(
    own: tuple[str, ...], dims: int, wanted: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "best.pt"
    write_checkpoint(path, {"config": to_dict(load_run(overrides=SAVED)), "spatial_dims": 3, "weights": {}})
    config = with_network_of_weights(load_run(overrides=[f"network.weights={path}", *own]), dims)
    assert {name: getattr(config.network, name) for name in wanted} == wanted
    assert config.network.weights == str(path)
