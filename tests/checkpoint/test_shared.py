"""A shared folder is what was exported or refused, and a name on the hub is a local copy of it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from hasten.checkpoint import shared as module
from hasten.checkpoint.shared import (
    HASHED,
    SUMS,
    is_shared,
    local_copy,
    read_safetensors,
    read_shared,
    safetensors_bytes,
)
from tests.checkpoint.hub_server import COMMIT, REPOSITORY, Hub, serving, use_hub

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])}
CONTENT = {"config": {"network": {"name": "unet"}}, "labels": {"0": "background", "3": "box"}, "spatial_dims": 3}
NAME = f"hf://{REPOSITORY}"


def shared_files(content: object = CONTENT) -> dict[str, bytes]:
    files = {
        "model.safetensors": save(WEIGHTS, {"format": "pt"}),
        "config.json": json.dumps(content).encode(),
        "postprocessing.yaml": b"{}\n",
    }
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    return {**files, SUMS: sums.encode()}


def folder_of(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_shared_folder_gives_what_was_put_in(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "net", {**shared_files(), "README.md": b"edited by hand"})
    content = read_shared(folder)
    assert {name: content[name] for name in CONTENT} == CONTENT
    assert content["weights"].keys() == WEIGHTS.keys()
    assert all(torch.equal(content["weights"][name], value) for name, value in WEIGHTS.items())
    assert is_shared(folder / "model.safetensors")
    assert not is_shared(folder / "config.json")


@pytest.mark.parametrize("name", HASHED)
def test_a_file_that_was_changed_or_is_missing(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "net", shared_files())
    file = folder / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))}: was changed since it was exported"):
        read_shared(folder)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))}: is missing; take the whole folder"):
        read_shared(folder)


def test_a_folder_without_readable_hashes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "net", shared_files())
    for damage in (b"\xff\xfe", b"one word\n", None):
        if damage is None:
            (folder / SUMS).unlink()
        else:
            (folder / SUMS).write_bytes(damage)
        with pytest.raises(ValueError, match=rf"{folder}: has no readable SHA256SUMS"):
            read_shared(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "describes no model"),
        ({"config": {"network": None}}, "describes no model"),
        ({"config": {"network": {"name": "os:system"}}}, r"network\.name=os:system is none of Hasten's"),
    ],
)
def test_settings_of_others_name_no_code(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        read_shared(folder_of(tmp_path / "net", shared_files(content)))


def test_a_tensor_of_two_names_keeps_both(tmp_path: Path) -> None:
    state = {"a": WEIGHTS["a"], "again": WEIGHTS["a"], "b": WEIGHTS["b"]}
    file = tmp_path / "some.safetensors"
    file.write_bytes(safetensors_bytes(state, {"format": "pt"}))
    read = read_safetensors(file)
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], value) for name, value in state.items())


def test_a_path_is_left_as_it_is(tmp_path: Path) -> None:
    assert local_copy(str(tmp_path)) == tmp_path
    assert local_copy("~/net") == Path.home() / "net"


hub_tests = pytest.mark.usefixtures("_huggingface_hub")


@pytest.fixture
def _huggingface_hub() -> None:
    pytest.importorskip("huggingface_hub")


@hub_tests
@pytest.mark.parametrize("name", [NAME, Path(NAME), f"{NAME}@v1"])
def test_a_repository_is_copied_without_what_no_prediction_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path
) -> None:
    hub = Hub({**shared_files(), "best.pt": b"a pickle", "data/README.md": b""})
    with serving(hub, tmp_path / "cache", monkeypatch):
        folder = local_copy(name)
    assert folder.is_relative_to(tmp_path / "cache")
    assert folder.name == COMMIT
    assert {path.name for path in folder.iterdir()} == set(shared_files())
    assert not [path for path in hub.requests if "best.pt" in path]
    assert torch.equal(read_shared(folder)["weights"]["a"], WEIGHTS["a"])
    # Without a network, the copy serves.
    assert local_copy(name) == folder


@hub_tests
def test_a_repository_with_changed_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**shared_files(), "model.safetensors": save({"a": torch.zeros(2, 3)})}
    with serving(Hub(files), tmp_path / "cache", monkeypatch):
        folder = local_copy(NAME)
    with pytest.raises(ValueError, match=r"model\.safetensors: was changed since it was exported"):
        read_shared(folder)


@hub_tests
def test_weights_of_another_program_are_checked_by_the_hubs_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(Hub({"model.safetensors": save(WEIGHTS)}), tmp_path / "cache", monkeypatch):
        file = local_copy(NAME)
        assert torch.equal(read_safetensors(file)["a"], WEIGHTS["a"])
        file.resolve().write_bytes(save({"a": torch.zeros(2, 3)}))
        with pytest.raises(ValueError, match=rf"is not what the hub has of {NAME} \(another SHA-256\)"):
            local_copy(NAME)


@hub_tests
def test_a_repository_that_is_too_large_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 100)
    with (
        serving(Hub(shared_files()), tmp_path / "cache", monkeypatch) as hub,
        pytest.raises(ValueError, match=rf"^{NAME}: has .* of weights, and .* up to 100.*; name a local copy$"),
    ):
        local_copy(NAME)
    assert not [path for path in hub.requests if "resolve" in path]


@hub_tests
def test_pickles_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub({"pytorch_model.bin": b"a pickle", "best.pt": b"a pickle"})
    with (
        serving(hub, tmp_path / "cache", monkeypatch),
        pytest.raises(
            ValueError,
            match=rf"{NAME}: has no model\.safetensors \(but .*best\.pt.*\), and pickles .*, which can hold code",
        ),
    ):
        local_copy(NAME)
    assert not [path for path in hub.requests if "resolve" in path]


@hub_tests
@pytest.mark.parametrize("name", ["hf://lab/absent", f"{NAME}@absent", "hf://lab", "hf://lab/net/best.pt", "hf://"])
def test_a_name_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with (
        serving(Hub(shared_files()), tmp_path / "cache", monkeypatch),
        pytest.raises(ValueError, match=rf"^{name}: can't be fetched \(.*\); check the name and the network") as error,
    ):
        local_copy(name)
    assert "\n" not in str(error.value)


@hub_tests
@pytest.mark.timeout(60)
def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use_hub(f"http://127.0.0.1:{closed.getsockname()[1]}", tmp_path / "cache", monkeypatch)
        with pytest.raises(
            ValueError, match=rf"{NAME}: can't be fetched \(.*\); .* `hf download {REPOSITORY} --local-dir"
        ):
            local_copy(NAME)


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ValueError, match=rf"{NAME}: needs huggingface_hub \(pip install 'hasten\[hub\]'\); or name a local copy"
    ):
        local_copy(NAME)
