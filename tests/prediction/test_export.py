from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

from hasten.checkpoint.file import write_checkpoint
from hasten.config.load import from_dict, to_dict
from hasten.config.schema import DataConfig, InferConfig, NetworkConfig, RunConfig, SampleConfig, TrainConfig
from hasten.nets.build import build_network
from hasten.nets.surgery.operate import operate
from hasten.prediction import export
from hasten.prediction.export import Exported, export_weights

NETWORKS = ("unet", "dynunet", "segresnet")
CHANNELS, LABELS = ["T1", "T2"], {"0": "background", "3": "a", "7": "b"}


def config_of(name: str = "unet", dims: int = 3, **settings: Any) -> RunConfig:
    stride = (2, 2, 2) if dims == 3 else (1, 2, 2)
    network = NetworkConfig(name=name, channels=(4, 8), strides=(stride,), dropout=0.1, **settings)  # type: ignore[arg-type]
    if name == "dynunet":
        network = NetworkConfig(name=name, channels=(4, 8, 16), strides=(stride, stride), **settings)  # type: ignore[arg-type]
    return RunConfig(
        network=network,
        data=DataConfig(source="https://host/set.zip?signature=secret"),
        sample=SampleConfig(patch=(8, 8, 8), batch_size=2, stages=()),
        train=TrainConfig(steps=40, learning_rate=1e-3, validate_every=20, checkpoint_every=20),
        infer=InferConfig(patch=(8, 8, 8)),
    )


def network_of(config: RunConfig, dims: int = 3) -> nn.Module:
    torch.manual_seed(1)
    network = build_network(config.network, num_channels=2, num_classes=3, spatial_dims=dims)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            module.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return network.eval()


def run_of(folder: Path, config: RunConfig, network: nn.Module, dims: int = 3, **changes: Any) -> Path:
    content = {
        "weights": network.state_dict(),
        "config": to_dict(config),
        "labels": LABELS,
        "channels": CHANNELS,
        "spatial_dims": dims,
        "step": 40,
        "dice": 0.9,
    }
    write_checkpoint(folder / "checkpoints" / "best.pt", {**content, **changes})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = config_of(weights="/home/secret/first.pt")
    return run_of(tmp_path / "run", config, network_of(config))


def scores(network: nn.Module, image: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = network(image)
    return result


def image_of(dims: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 2, *(16, 8, 24)[-dims:], generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", NETWORKS)
def test_safetensors_hold_the_weights_under_their_names(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A full disk for temporary files ends no export.
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda **_: pytest.fail("a temporary file"))
    config = config_of(name)
    network = network_of(config)
    # As a run on a CPU saves them.
    network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    out = tmp_path / "out" / "model.safetensors"
    done = export_weights(run_of(tmp_path / "run", config, network), out)
    assert done == Exported(path=out, format="safetensors", difference=0.0, scale=0.0)
    assert list(out.parent.iterdir()) == [out]
    other = build_network(config.network, num_channels=2, num_classes=3, spatial_dims=3).eval()
    load_model(other, out)
    for key, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
    # A tensor of two names (DynUNet's) is written once.
    result = load_file(out)
    assert sum(value.numel() for value in result.values()) == sum(value.numel() for value in network.parameters())


def metadata_of(path: Path) -> dict[str, str]:
    if path.suffix == ".onnx":
        return {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_the_metadata_say_what_a_reader_needs_and_no_more(run: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"model.{ending}"
    export_weights(run, out)
    result = metadata_of(out)
    assert json.loads(result["labels"]) == LABELS
    assert json.loads(result["channels"]) == CHANNELS
    assert (result["spatial_dims"], result["step"], result["dice"]) == ("3", "40", "0.9")
    config = from_dict(json.loads(result["config"]), where="metadata")
    assert config.network == config_of().network
    assert config.prepare == config_of().prepare
    assert b"secret" not in out.read_bytes()  # where the data lay, and the weights that the run started from


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dims", "norm"), [(3, "instance"), (2, "batch")])
def test_an_onnx_file_gives_the_same_scores_at_any_size(tmp_path: Path, name: str, dims: int, norm: str) -> None:
    config = config_of(name, dims, norm=norm)
    network, out = network_of(config, dims), tmp_path / "model.onnx"
    done = export_weights(run_of(tmp_path / "run", config, network, dims), out)
    assert done.difference is not None
    assert 0 <= done.difference < 1e-4 < done.scale
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert [(one.name, one.shape[1]) for one in session.get_inputs()] == [("image", 2)]
    names = ["depth", "height", "width"][-dims:]
    assert session.get_outputs()[0].shape == ["batch", 3, *names]
    for batch in (1, 3):
        image = image_of(dims, batch)
        [result] = session.run(None, {"image": image.numpy()})
        assert np.abs(result - scores(network, image).numpy()).max() < 1e-4


def test_a_network_that_was_operated_on_is_exported_plain(tmp_path: Path) -> None:
    plain = config_of()
    config = replace(plain, network=replace(plain.network, dropout=0.0))
    network = network_of(config)
    expected = scores(network, image_of(3))
    operate(network)
    assert any(type(module).__module__.startswith("hasten.") for module in network.modules())
    out = tmp_path / "model.onnx"
    export_weights(run_of(tmp_path / "run", config, network), out)
    model = onnx.load(out)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert not model.functions
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    [actual] = session.run(None, {"image": image_of(3).numpy()})
    assert np.abs(actual - expected.numpy()).max() < 1e-4


def test_other_scores_are_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model.onnx"
    plain = export._onnx

    def wrong(network: nn.Module, *more: Any) -> bytes:
        """A file of slightly other weights."""
        data = plain(network, *more)
        with torch.no_grad():
            list(network.parameters())[-1].add_(0.01)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(export, "_onnx", wrong)
        with pytest.raises(ValueError, match="not written"):
            export_weights(run, out)
    assert not out.exists()


@pytest.mark.parametrize("ending", ["safetensors"])
def test_a_file_that_exists_is_replaced_only_by_overwrite(run: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"model.{ending}"
    out.write_text("mine")
    with pytest.raises(ValueError, match=r"exists; choose another --out, or add --overwrite"):
        export_weights(run, out)
    assert out.read_text() == "mine"
    export_weights(run, out, overwrite=True)
    assert metadata_of(out)["step"] == "40"
    folder = tmp_path / f"folder.{ending}"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"exists; choose another --out$"):
        export_weights(run, folder, overwrite=True)


def test_an_ending_that_names_no_format(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.pt: pt names no format"):
        export_weights(run, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="pt names no format"):
        export_weights(run, tmp_path / "model.onnx", "pt")  # type: ignore[arg-type]
