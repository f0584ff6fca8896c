"""A run as a folder for the hub predicts what the run predicts, and says what it is without saying whose it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.shared import HASHED, SUMS
from hasten.checkpoint.weights import read_model
from hasten.cli.main import app
from hasten.observe.env import installed_version
from hasten.prediction.export import export_weights
from hasten.prediction.hub import public_content
from hasten.prediction.postprocess import Cleaning, write_cleanings
from hasten.prediction.predict import load_predictor, predict
from tests.checkpoint.hub_server import REPOSITORY, Hub, serving
from tests.prediction.test_export import config_of, network_of, run_of
from tests.training.phantom_runs import array_of

FILES = {*HASHED, SUMS, "README.md"}


@pytest.fixture(scope="module")
def shared(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shared") / "net"
    export_weights(run, out, "hub")
    return out


def front_matter(folder: Path) -> tuple[dict[str, Any], str]:
    _, top, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(top), text


def test_a_shared_folder_holds_the_run(run: Path, shared: Path) -> None:
    assert {path.name for path in shared.iterdir()} == FILES
    was, now = read_checkpoint(run / "checkpoints/best.pt"), read_model(shared)
    assert now["weights"].keys() == was["weights"].keys()
    for name, value in was["weights"].items():
        assert torch.equal(now["weights"][name], value)
        assert now["weights"][name].dtype == value.dtype
    for name in was.keys() - {"weights", "config"}:
        assert now[name] == was[name], name
    for name in ("prepare", "sample", "network", "train", "infer"):
        assert now["config"][name] == was["config"][name], name


def test_it_predicts_the_runs_own_label_maps(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = shutil.copytree(run, tmp_path / "run")
    write_cleanings(cleaned, {3: Cleaning(name="low", keep_largest=True), 7: Cleaning(min_volume_mm3=60.0)})
    folder, images = tmp_path / "net", run.parent / "data" / "imagesTr"
    result = CliRunner().invoke(app, ["export", str(cleaned), "--format", "hub", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    assert f"hf upload OWNER/NAME {folder}" in result.output
    wanted = predict(cleaned, images, tmp_path / "wanted")
    hub = Hub({path.name: path.read_bytes() for path in folder.iterdir()})
    with serving(hub, tmp_path / "cache", monkeypatch):
        for number, name in enumerate((str(folder), f"hf://{REPOSITORY}@main")):
            out = tmp_path / f"labels{number}"
            result = CliRunner().invoke(app, ["predict", name, str(images), "--out", str(out)])
            assert result.exit_code == 0, result.output
            for path in wanted:
                assert (out / path.name).read_bytes() == path.read_bytes()
        image = array_of(next(images.iterdir()))
        one, other = (load_predictor(each)(image, spacing=(1.5, 1.2, 1.0)) for each in (cleaned, f"hf://{REPOSITORY}"))
    assert np.array_equal(one, other)


def test_a_shared_folder_is_exported_again(shared: Path, tmp_path: Path) -> None:
    export_weights(shared, tmp_path / "again", "hub")
    for name in HASHED:
        assert (tmp_path / "again" / name).read_bytes() == (shared / name).read_bytes(), name


@pytest.mark.parametrize("name", ["unet", "dynunet", "plainconvunet"])
def test_the_card_of_a_file_alone(tmp_path: Path, name: str) -> None:
    config = config_of(name if name != "plainconvunet" else "unet")
    run = run_of(tmp_path / "run", config, network_of(config))
    export_weights(run / "checkpoints/best.pt", tmp_path / "net", "hub")
    top, text = front_matter(tmp_path / "net")
    assert top["metrics"] == ["dice"]
    assert "| mean | 0.9 |" in text
    assert "Hardware" not in text
    assert read_model(tmp_path / "net")["weights"].keys() == read_model(run)["weights"].keys()


def test_what_the_card_says(run: Path, shared: Path) -> None:
    top, text = front_matter(shared)
    summary = json.loads((run / "summary.json").read_text())
    assert (top["license"], top["library_name"], top["pipeline_tag"]) == ("unknown", "hasten", "image-segmentation")
    assert {"hasten", "3d"} <= set(top["tags"])
    (result,) = top["model-index"][0]["results"]
    dice = next(metric for metric in result["metrics"] if metric["type"] == "dice")
    assert dice["value"] == pytest.approx(summary["best"]["value"], abs=1e-4)
    assert f"{summary['cases']['train']} for training, {summary['cases']['validation']} for validation" in text
    assert "median 1.5 x 1.2 x 1.0" in text
    assert "hasten predict hf://OWNER/NAME" in text
    assert "time limit" not in text
    assert f"torch {installed_version('torch')}" in text
    assert all(f"- {doubt}\n" in text for doubt in summary["doubts"])
    validation = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    for name, value in validation["dice_per_class"].items():
        assert f"| {name} | {round(value, 4)} |" in text


def test_neither_paths_nor_cases_are_named(run: Path, shared: Path) -> None:
    cases = json.loads((run / "plan.json").read_text())["cases"]
    names = {name for part in cases.values() for name in part}
    assert names
    for path in shared.iterdir():
        data = path.read_bytes()
        assert str(run.parent).encode() not in data, path
        assert not [name for name in names if name.encode() in data], path


def test_the_hubs_own_library_reads_the_card(shared: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(shared / "README.md").data
    assert data.license == "unknown"
    assert {each.metric_type for each in data.eval_results} == {"dice", "iou"}
    assert all(each.task_type == "image-segmentation" for each in data.eval_results)


def test_a_path_to_the_users_code_is_not_shared(tmp_path: Path) -> None:
    loss = {"name": r"C:\secret\loss.py:Mine", "args": {"table": "/home/secret/table.csv"}}
    config = config_of()
    run = run_of(tmp_path / "run", config, network_of(config))
    whole = read_checkpoint(run / "checkpoints/best.pt")
    whole["config"]["loss"] |= loss
    write_checkpoint(run / "checkpoints/best.pt", whole)
    for out, kind in ((tmp_path / "net", "hub"), (tmp_path / "net.safetensors", None)):
        export_weights(run, out, kind)  # type: ignore[arg-type]
    files = [*(tmp_path / "net").iterdir(), tmp_path / "net.safetensors"]
    assert not [path for path in files if b"secret" in path.read_bytes()]
    assert read_model(tmp_path / "net")["config"]["loss"]["name"] == "loss.py:Mine"
    own = {"network": {"name": "/home/secret/net.py:Net", "args": {"table": "/home/secret/table.csv"}}}
    assert public_content({"config": own})["config"]["network"] == {"name": "net.py:Net", "weights": None}


def test_a_time_limit_is_told(run: Path, tmp_path: Path) -> None:
    limited = shutil.copytree(run, tmp_path / "run")
    content = read_checkpoint(run / "checkpoints/best.pt")
    content["config"]["train"]["budget"] = 600.0
    write_checkpoint(limited / "checkpoints/best.pt", content)
    export_weights(limited, tmp_path / "net", "hub")
    assert "The training had a time limit" in front_matter(tmp_path / "net")[1]


@pytest.mark.parametrize(
    "damage", [{"regions": []}, {"regions": {"a": 1}}, {"region_values": "x"}, {"spatial_dims": 1}, {"labels": [1]}]
)
def test_settings_of_another_form_are_refused(shared: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = shutil.copytree(shared, tmp_path / "net")
    content = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(content | damage))
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in HASHED]
    (folder / SUMS).write_text("".join(f"{each}  {name}\n" for each, name in zip(digests, HASHED, strict=True)))
    with pytest.raises(ValueError, match=rf"model\.safetensors: is no model, as of its {next(iter(damage))}"):
        load_predictor(folder)


def test_a_folder_of_others_is_not_written_into(shared: Path, run: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "README.md").write_text("theirs")
    (theirs / "config.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"theirs: exists; choose another --out$"):
            export_weights(run, theirs, "hub", overwrite=overwrite)
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {"README.md": "theirs", "config.json": "{}"}


def test_a_new_export_keeps_the_card_that_was_edited(shared: Path, run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shared, tmp_path / "net")
    (folder / "README.md").write_text("license: mit")
    (folder / "postprocessing.yaml").write_text("3: {keep_largest: true}\n")
    with pytest.raises(ValueError, match=r"net: exists; choose another --out, or add --overwrite"):
        export_weights(run, folder, "hub")
    export_weights(run, folder, "hub", overwrite=True)
    assert (folder / "README.md").read_text() == "license: mit"
    assert read_model(folder)["step"] == read_model(shared)["step"]
    assert (folder / "postprocessing.yaml").read_bytes() == (shared / "postprocessing.yaml").read_bytes()


def test_a_run_without_best_weights(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "checkpoints/best.pt").unlink()
    with pytest.raises(ValueError, match=r"best\.pt: no such checkpoint; the run was stopped before it wrote one"):
        export_weights(folder, tmp_path / "net", "hub")
    assert not (tmp_path / "net").exists()


def test_weights_alone_predict_nothing(run: Path, tmp_path: Path) -> None:
    export_weights(run, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"has no readable SHA256SUMS, so it is no shared model; name a folder"):
        predict(tmp_path / "net.safetensors", run.parent / "data" / "imagesTr", tmp_path / "labels")
