"""A network of the user's own goes through all that a built-in one does."""

from __future__ import annotations

import importlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from safetensors.torch import load_file

from hasten.config.schema import RunConfig
from hasten.observe.progress import Progress
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.export import export_weights
from hasten.prediction.predict import predict
from hasten.training.run import train
from tests.training.runs import assert_same_run, at_step, checkpoint, config_of, resumed

CODE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, in_channels, out_channels, width=4, heads=False, by_values=False, always=False):
        super().__init__()
        self.by_values, self.always = by_values, always
        self.down = nn.Sequential(nn.Conv3d(in_channels, width, 3, 2, 1), nn.InstanceNorm3d(width), nn.ReLU())
        self.up = nn.ConvTranspose3d(width, width, 2, 2)
        self.last = nn.Sequential(nn.Dropout(0.1), nn.Conv3d(width + in_channels, out_channels, 3, padding=1))
        self.coarse = nn.Conv3d(width, out_channels, 1) if heads else None

    def forward(self, x):
        small = self.down(x)
        if self.by_values and small.mean() < -1:
            small = -small
        scores = self.last(torch.cat([x, self.up(small)], 1))
        return [scores, self.coarse(small)] if self.coarse is not None and (self.training or self.always) else scores


class Fixed(Net):
    def __init__(self, in_channels: int, out_channels: int, patch):
        super().__init__(in_channels, out_channels)
        self.patch = tuple(patch)

    def forward(self, x):
        if tuple(x.shape[2:]) != self.patch:
            raise ValueError(f"built for {self.patch}")
        return super().forward(x)
"""
Make = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    return write_phantoms(folder / "set", num_cases=6, shape=(16, 24, 24))


@pytest.fixture
def make(folder: Path, source: Path, tmp_path: Path) -> Make:
    (tmp_path / "nets.py").write_text(CODE)
    # The settings of a built-in network are at their defaults.
    usual = (
        "network.channels=null", "network.strides=null", "network.num_res_units=2", "network.dropout=0.0",
    )  # fmt: skip
    return lambda name, *overrides: config_of(
        source, folder / "cache", *usual, f"network.name={tmp_path / 'nets.py'}:{name}", *overrides
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Net", ("network.args={heads: true}",)),
        pytest.param("Net", ("network.args={heads: true, always: true}",), marks=pytest.mark.slow),
        pytest.param("Net", ("network.args={by_values: true}", "train.compile=true"), marks=pytest.mark.slow),
        pytest.param("Fixed", (), marks=pytest.mark.slow),
    ],
    ids=["heads", "heads in evaluation", "by values", "fixed size"],
)
def test_it_trains_resumes_bit_for_bit_predicts_and_exports(
    make: Make, source: Path, tmp_path: Path, name: str, settings: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(make(name, *settings), whole)
    assert any("decides by values" in text for text in caplog.messages) == ("by_values" in str(settings))
    with pytest.raises(KeyboardInterrupt), at_step(7, "interrupt"):
        train(make(name, *settings), stopped)
    train(resumed(stopped), stopped, resume=True)
    assert_same_run(whole, stopped)
    assert checkpoint(whole, "best")["config"]["network"]["divisor"] == ([16, 16, 16] if name == "Fixed" else [2, 2, 2])
    assert (whole / "checkpoints/network.py").read_text() == CODE

    image = sorted((source / "imagesTr").glob("*.nii.gz"))[0]
    [written] = predict(whole, image, tmp_path / "masks", device="cpu")
    assert nib.load(written).shape == nib.load(image).shape
    export_weights(whole, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"best\.pt: its network is your own code, .*; export it as \.safetensors"):
        export_weights(whole, tmp_path / "shared", "hub")
    assert not (tmp_path / "shared").exists()
    weights = checkpoint(whole, "best")["weights"]
    assert load_file(tmp_path / "net.safetensors").keys() == weights.keys()
    if "by_values" in str(settings):
        with pytest.raises(ValueError, match=r"by values .*ONNX .*; use safetensors"):
            export_weights(whole, tmp_path / "net.onnx")
    else:
        assert export_weights(whole, tmp_path / "net.onnx").scale > 0


def test_code_that_changed_or_is_gone_after_the_training(
    make: Make, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, code, image = tmp_path / "run", tmp_path / "nets.py", sorted((source / "imagesTr").glob("*.nii.gz"))[0]
    train(make("Net", "train.steps=2", "train.validate_every=2"), run)

    def labels(name: str, **settings: bool) -> np.ndarray:
        [path] = predict(run, image, tmp_path / name, device="cpu", **settings)  # type: ignore[arg-type]
        return np.asarray(nib.load(path).dataobj)

    first = labels("first")
    code.write_text(CODE.replace("return super().forward(x)", "return super().forward(x)  # here"))
    for refused in (lambda: labels("changed"), lambda: export_weights(run, tmp_path / "net.safetensors")):
        with pytest.raises(ValueError, match=r"nets.py:Net, .*changed.* copy .*network.py .*or add --trust"):
            refused()
    assert not (tmp_path / "changed").exists()
    assert np.array_equal(labels("trusted", trust_changed_code=True), first)
    assert export_weights(run, tmp_path / "net.safetensors", trust_changed_code=True).difference == 0
    with pytest.raises(ValueError, match=r"source has changed .*\(network.digest="):
        train(resumed(run, "train.steps=4"), run, resume=True)

    code.unlink()
    caplog.clear()
    assert np.array_equal(labels("gone"), first)
    assert any("is gone; the network is built from the run's copy" in text for text in caplog.messages)
    (run / "checkpoints/network.py").write_text(CODE + "#")
    with pytest.raises(ValueError, match=r"network\.py:Net, which has changed"):
        labels("other")
    (run / "checkpoints/network.py").unlink()
    with pytest.raises(ValueError, match="which is gone, and so is the copy"):
        labels("none")
    shutil.rmtree(run)


def test_from_python_by_its_class(source: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_a_test.py").write_text(CODE)
    (tmp_path / "chain_of_a_test.py").write_text(
        "from hasten.augment.contrast import Gamma\nchain = [Gamma(prob=0.5)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("nets_of_a_test").Net
    chain = importlib.import_module("chain_of_a_test").chain
    usual = ("network.channels=null", "network.strides=null", "network.num_res_units=2", "network.dropout=0.0")
    short = ("train.steps=2", "train.validate_every=2", "network.args.width=6")
    config, said = config_of(source, folder / "cache", *usual, *short), io.StringIO()
    train(config, tmp_path / "run", network=made, augment=chain, progress=Progress(said))
    assert resumed(tmp_path / "run").network.name == "nets_of_a_test:Net"
    assert resumed(tmp_path / "run").network.args == {"width": 6}
    assert resumed(tmp_path / "run").augment.chain == "chain_of_a_test:chain"
    lines = dict(line.split(maxsplit=1) for line in said.getvalue().splitlines())
    assert "4 cases to train on, 2 to validate on; 3-D" in lines["data"]
    assert lines["device"].startswith("cpu, ")
    assert lines["network"].startswith("nets_of_a_test:Net; ")
    assert (tmp_path / "run/checkpoints/network.py").read_text() == CODE
    image = sorted((source / "imagesTr").glob("*.nii.gz"))[0]
    assert predict(tmp_path / "run", image, tmp_path / "masks", device="cpu")
    with pytest.raises(ValueError, match=r"network: Net is built already, .* give its class"):
        train(config, tmp_path / "other", network=made(1, 2))
    with pytest.raises(ValueError, match=r"network: .*<lambda>: .*at the top of a file"):
        train(config, tmp_path / "other", network=lambda: made(1, 2))
    assert not (tmp_path / "other").exists()
