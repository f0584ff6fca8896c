"""Weights to start from: files of many programs, and a run from another with other classes and channels."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from hasten.checkpoint.custom_network import with_code
from hasten.checkpoint.file import write_checkpoint
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import RUN_YAML, SUMMARY_JSON, WEIGHTS_JSON
from hasten.prediction.export import export_weights
from hasten.training.initial import read_weights, start_of
from hasten.training.plan import plan_run
from hasten.training.run import train
from tests.checkpoint.hub_server import REPOSITORY, Hub, serving
from tests.training.runs import checkpoint, config_of


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.Conv3d(4, 2, 1))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


NNUNET = {
    "optimizer_state": {"state": {}, "param_groups": []},
    "grad_scaler_state": None,
    "logging": {"mean_fg_dice": [np.float32(0.5)], "ema_fg_dice": [np.float64(0.25)], "lrs": [0.01]},
    "_best_ema": np.float64(0.25),
    "current_epoch": np.int64(7),
    "init_args": {"plans": {"dataset_name": "Dataset001"}, "configuration": "3d_fullres", "fold": 0},
    "trainer_name": "nnUNetTrainer",
    "inference_allowed_mirroring_axes": (0, 1, 2),
}


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("", lambda state: state),
        ("state_dict", lambda state: {"state_dict": state, "epoch": 3}),
        ("model", lambda state: {"model": state, "optimizer": {}}),
        ("network_weights", lambda state: {"network_weights": state, **NNUNET}),
        ("model.weights", lambda state: {"model": {"weights": state}}),
        ("", lambda state: {**state, "epoch": 4}),
        ("state_dict", lambda state: {"state_dict": state, "random_state": torch.zeros(3)}),
        ("network", lambda state: {"network": state, "average": None, "random_state": torch.zeros(3)}),
        ("average", lambda state: {"network": {"a": torch.ones(1)}, "average": state, "random_state": torch.zeros(3)}),
    ],
)
def test_a_state_dict_is_read_from_where_others_put_it(tmp_path: Path, key: str, content: Callable[..., Any]) -> None:
    state = net().state_dict()
    torch.save(content(state), tmp_path / "some.pth")
    result = read_weights(tmp_path / "some.pth")
    assert result.key == key
    assert same(result.weights, state)


def test_safetensors_and_the_hash_of_a_file(tmp_path: Path) -> None:
    import hashlib

    from safetensors.torch import save_file

    file = tmp_path / "model.safetensors"
    save_file(net().state_dict(), file)
    result = read_weights(file)
    assert same(result.weights, net().state_dict())
    assert result.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(b"not such a file")
    with pytest.raises(ValueError, match=r"model\.safetensors: is damaged"):
        read_weights(file)


class Harm:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harm-was-done"),)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": net().state_dict(), "more": Harm()}, tmp_path / "a.pt")
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Harm()))
    for name in ("a.pt", "b.pth"):
        with pytest.raises(
            ValueError, match=rf"{name}: .*holds more than weights, and nothing in it was run"
        ) as raised:
            read_weights(tmp_path / name)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "harm-was-done").exists()


def spoiled(folder: Path) -> dict[str, str]:
    """Files of weights that can't be taken, and what is said of each."""
    torch.save({"epoch": 3}, folder / "none.pt")
    torch.save([1, 2], folder / "list.pt")
    (folder / "text.pt").write_text("hello")
    torch.jit.save(torch.jit.script(net()), str(folder / "script.ts"))
    write_checkpoint(folder / "best.pt", {"weights": net().state_dict()})
    data = bytearray((folder / "best.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "best.pt").write_bytes(data)
    state = net().state_dict()
    state["2.weight"][0] = float("nan")
    torch.save(state, folder / "nan.pt")
    return {
        "absent.pt": r"absent\.pt: no such file or run",
        "": r"is no run \(it has no checkpoints/best\.pt\); name a file",
        "none.pt": r"none\.pt: holds no state dict \(it has epoch\)",
        "list.pt": r"list\.pt: holds no state dict \(it has list\)",
        "text.pt": r"text\.pt: is damaged, or holds more than weights",
        "script.ts": r"script\.ts: is damaged, or holds more than weights",
        "best.pt": r"best\.pt: damaged \(its checksum does not hold\)",
        "nan.pt": r"nan\.pt: .*NaN or infinite .*1 tensors, such as 2\.weight",
    }


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    for name, message in spoiled(tmp_path).items():
        with pytest.raises(ValueError, match=message):
            read_weights(tmp_path / name)


# From one run to another
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("initial")


@pytest.fixture(scope="module")
def make(phantoms: Path) -> Callable[..., RunConfig]:
    shorter = ("train.steps=4", "observe.trackers=[]", "observe.monitor_every=0")
    return lambda *overrides: config_of(phantoms, phantoms.parent / "cache", *shorter, *overrides)


@pytest.fixture(scope="module")
def first(folder: Path, make: Callable[..., RunConfig]) -> Path:
    train(make("network.norm=batch"), folder / "first")
    return folder / "first"


def with_other_image(run: Path, out: Path) -> Path:
    """The weights of a run as if its images had two channels, and its scores three more classes."""
    weights = checkpoint(run, "best")["weights"]
    changed: dict[str, Any] = {}
    classes = list(weights.values())[-1].shape[0]
    for name, value in weights.items():
        if value.ndim == 5 and value.shape[1] == 1:
            value = torch.cat([value, value], dim=1)
        elif classes in value.shape[:2] and name.startswith("model.2"):
            for axis in (axis for axis in range(min(2, value.ndim)) if value.shape[axis] == classes):
                value = torch.cat([value, value.narrow(axis, 0, 1)], dim=axis)
        changed[f"module.net.{name}"] = value.clone()
    torch.save({"state_dict": changed}, out)
    return out


def test_a_run_starts_from_another(folder: Path, make: Callable[..., RunConfig], first: Path) -> None:
    out = folder / "second"
    config = make(
        "network.norm=batch", f"network.weights={first}", "train.learning_rate=1e-12", "train.freeze=[model.0.*]"
    )
    train(config, out)
    began, ended = checkpoint(first, "best")["weights"], checkpoint(out, "last")
    for name in began:
        for part in ("network", "average"):
            got = ended[part][name]
            if name.startswith("model.0."):
                # Statistics of its norms included.
                assert torch.equal(got, began[name]), name
            elif "running" not in name and "num_batches" not in name:
                assert torch.allclose(got, began[name], atol=1e-6), name
    moved = [name for name in began if "running_mean" in name and not torch.equal(ended["network"][name], began[name])]
    assert moved == [name for name in began if "running_mean" in name and not name.startswith("model.0.")]
    record = json.loads((out / WEIGHTS_JSON).read_text())
    assert set(record["taken"]) == set(began)
    assert record["sha256"] == read_weights(first).sha256
    engaged = json.loads((out / SUMMARY_JSON).read_text())["accelerators"]["weights to start from"]
    assert engaged["on"]
    assert f"{len(began)} of {len(began)} tensors" in engaged["reason"]


def test_a_run_starts_from_a_shared_folder_as_from_the_run(
    folder: Path, make: Callable[..., RunConfig], first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = folder / "shared"
    export_weights(first, shared, "hub")
    hub = Hub({path.name: path.read_bytes() for path in shared.iterdir()})
    starts = {}
    with serving(hub, folder / "hub", monkeypatch):
        for name in (str(first), str(shared), f"hf://{REPOSITORY}"):
            planned = plan_run(make(f"network.weights={name}"))
            start = start_of(planned)
            assert start is not None
            starts[name] = (dataclasses.replace(planned.config.network, weights=None), start.fit.values)
    (network, values), *others = starts.values()
    assert network.norm == "batch"  # as the run has it
    for other, got in others:
        assert other == network
        assert same(got, values)
    assert with_code(make(), weights=Path(f"hf://{REPOSITORY}")).network.weights == f"hf://{REPOSITORY}"
    (shared / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"model\.safetensors: was changed since it was exported"):
        plan_run(make(f"network.weights={shared}"))


def test_a_run_goes_on_without_what_it_started_from(
    folder: Path, make: Callable[..., RunConfig], first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "fourth"
    hub = Hub({"model.safetensors": save(checkpoint(first, "best")["weights"])})
    with serving(hub, folder / "lost", monkeypatch):
        train(make("network.norm=batch", f"network.weights=hf://{REPOSITORY}", "train.steps=2"), out)
    shutil.rmtree(folder / "lost")  # and there is no network any more
    assert train(load_run(out / RUN_YAML, ["train.steps=3"]), out, resume=True)["position"] == 3


def test_other_classes_and_channels(folder: Path, make: Callable[..., RunConfig], first: Path) -> None:
    file, out = with_other_image(first, folder / "other.pt"), folder / "third"
    train(make("network.norm=batch", f"network.weights={file}"), out)
    record = json.loads((out / WEIGHTS_JSON).read_text())
    assert record["prefixes"] == {"file": "module.net.", "network": ""}
    assert record["key"] == "state_dict"
    assert record["adapted"]
    assert all(name.startswith("model.0.") for name in record["adapted"])
    assert record["left"]
    assert all(name.startswith("model.2.") and "classes differ" in why for name, why in record["left"].items())


def test_mistakes_leave_no_run(folder: Path, make: Callable[..., RunConfig], first: Path) -> None:
    out = folder / "none"
    torch.save({"a.weight": torch.zeros(3, 4)}, folder / "else.pt")
    wrong = {
        f"network.weights={folder / 'absent.pt'}": r"^network\.weights: .*absent\.pt: no such file or run",
        f"network.weights={folder / 'else.pt'}": r"nothing of it fits .*a\.weight; the network has model",
        "train.freeze=[modl.0.*]": r"train\.freeze: 'modl\.0\.\*' fits no .*near are model\.0",
        "train.freeze=['*']": r"train\.freeze: \* leaves nothing to train",
        "train.lr_scale={none: 0.5}": r"train\.lr_scale: 'none' fits no parameter",
    }
    for override, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            train(make("network.norm=batch", override), out)
        assert not (out / RUN_YAML).exists()
