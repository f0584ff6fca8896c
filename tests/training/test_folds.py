"""Cross-validation: the folds of one folder, and what they come to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.evaluation import crossval
from hasten.evaluation.crossval import summarise
from hasten.evaluation.evaluate import evaluate
from hasten.training import folds
from hasten.training.folds import train_folds
from hasten.training.stop import Stopped
from tests.training.runs import SETTINGS, assert_same_run, at_step, checkpoint, config_of

OF_FOLDS = ("data.split.fraction=null", "data.split.num_folds=3", "train.steps=6", "prepare.spacing=[0,0,0]")


@pytest.fixture(scope="module")
def data(phantoms: Path) -> Path:
    return phantoms


@pytest.fixture(scope="module")
def cache(phantoms: Path) -> Path:
    return phantoms.parent / "cache"


def config(data: Path, cache: Path, *more: str) -> RunConfig:
    return config_of(data, cache, *OF_FOLDS, *more)


@pytest.fixture(scope="module")
def trained(data: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained") / "cv"
    return out, train_folds(config(data, cache), out)


def test_each_fold_is_an_ordinary_run_and_every_case_is_validated_once(
    trained: tuple[Path, dict[str, Any]], cache: Path
) -> None:
    out, result = trained
    seen: list[str] = []
    for fold in range(3):
        run = out / f"fold{fold}"
        split = load_run(run / "run.yaml").data.split
        assert (split.by, split.fold, split.num_folds) == ("fold", fold, 3)
        assert json.loads((run / "summary.json").read_text())["status"] == "finished"
        scored = json.loads((run / "validation/evaluation.json").read_text())
        seen += {score["case"] for score in scored["scores"]}
    assert sorted(seen) == [f"phantom_{number:03d}" for number in range(6)]
    assert sorted(result["cases"]) == sorted(seen)
    assert json.loads((out / "cv.json").read_text())["folds"].keys() == {"0", "1", "2"}


def test_the_folds_of_a_list_keep_their_numbers(data: Path, cache: Path, tmp_path: Path) -> None:
    content = json.loads((data / "dataset.json").read_text())
    entries = [
        {name: str(data / entry[name]) for name in ("image", "label")} | {"fold": 1 + number % 2}
        for number, entry in enumerate(content["training"])
    ]
    path = tmp_path / "list.json"
    path.write_text(json.dumps({**content, "training": entries}))
    asked = config(path, cache, "data.split.num_folds=null")
    with pytest.raises(ValueError, match=r"--folds 0: there are 2 folds, 1, 2; name some"):
        train_folds(asked, tmp_path / "cv", [0])
    result = train_folds(asked, tmp_path / "cv", [2])
    assert sorted(result["cases"]) == ["phantom_001", "phantom_003", "phantom_005"]
    split = load_run(tmp_path / "cv/fold2/run.yaml").data.split
    assert (split.by, split.fold, split.num_folds) == ("fold", 2, 2)
    assert json.loads((tmp_path / "cv/fold2/plan.json").read_text())["decisions"]["data.split.by"]["value"] == "fold"


def test_the_summary_is_that_of_the_label_maps(
    trained: tuple[Path, dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    out, result = trained
    for fold in range(3):
        for path in (out / f"fold{fold}/validation").glob("*.nii.gz"):
            (tmp_path / path.name).symlink_to(path)
    whole = evaluate(tmp_path, data)
    assert result["over_cases"]["dice"] == pytest.approx(whole.mean())
    by_fold = [evaluate(out / f"fold{fold}/validation", data).mean() for fold in range(3)]
    assert result["over_folds"]["dice"]["mean"] == pytest.approx(np.mean(by_fold))
    assert result["over_folds"]["dice"]["std"] == pytest.approx(np.std(by_fold, ddof=1))
    [name] = result["classes"]
    assert result["classes"][name]["nsd"]["over_cases"]["mean"] == pytest.approx(whole.summary(name, "nsd").mean)


def test_the_same_call_goes_on_where_it_stopped(
    trained: tuple[Path, dict[str, Any]], data: Path, cache: Path, tmp_path: Path
) -> None:
    straight, stopped = trained[0], tmp_path / "stopped"
    with at_step(3, "interrupt"), pytest.raises(Stopped, match="the same command resumes there"):
        train_folds(config(data, cache), stopped, [0, 1])
    assert not (stopped / "fold1").exists()
    train_folds(config(data, cache), stopped, [0, 1])
    for fold in ("fold0", "fold1"):
        assert checkpoint(stopped / fold, "last")["step"] == 6
        assert_same_run(straight / fold, stopped / fold)


def test_folds_of_one_time_limit_have_the_network_of_the_first(
    trained: tuple[Path, dict[str, Any]], data: Path, cache: Path
) -> None:
    first = load_run(trained[0] / "fold0/run.yaml")
    limited = config(data, cache, "train.budget=60", "network.channels=null", "sample.patch=null")
    again = folds._with_first_network(limited, trained[0])
    assert (again.network, again.sample.patch) == (first.network, first.sample.patch)
    assert folds._with_first_network(limited, data) == limited


def test_finished_folds_are_left_as_they_are(
    trained: tuple[Path, dict[str, Any]], data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = trained

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to train or to predict")

    monkeypatch.setattr(folds, "train", fail)
    monkeypatch.setattr(crossval, "predict_validation", fail)
    monkeypatch.setattr(crossval, "evaluate_pairs", fail)
    assert train_folds(config(data, cache), out)["over_cases"] == result["over_cases"]


def test_a_fold_is_scored_again_where_its_class_has_another_name(data: Path, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "data"
    shutil.copytree(data, source)
    before = train_folds(config(source, cache), tmp_path / "cv", [0])
    listing = source / "dataset.json"
    listing.write_text(listing.read_text().replace('"spleen"', '"organ"'))
    after = train_folds(config(source, cache), tmp_path / "cv", [0])
    assert list(after["classes"]) == ["organ"]
    assert after["over_cases"] == before["over_cases"]


def test_changed_settings_are_refused_with_the_difference(
    trained: tuple[Path, dict[str, Any]], data: Path, cache: Path
) -> None:
    with pytest.raises(ValueError, match=r"cv\.yaml: all folds have the same settings") as error:
        train_folds(config(data, cache, "train.steps=7", "loss.gamma=1.5"), trained[0])
    assert "train.steps=7 instead of 6" in str(error.value)
    assert "loss.gamma=1.5 instead of 2.0" in str(error.value)
    train_folds(config(data, cache, "cache.home=file"), trained[0])  # only how it is computed


@pytest.mark.parametrize(
    ("more", "chosen", "message"),
    [
        ([], [3], "--folds 3: there are 3 folds, 0, 1, 2"),
        ([], [], "--folds none: there are 3 folds"),
        (["data.split.by=nnunet"], [5], "--folds 5: there are 5 folds, 0, 1, 2, 3, 4"),
        (["data.split.num_folds=9"], "all", r"num_folds is 9; .*between 2 and .*, 6"),
        (["data.split.fraction=0.3"], "all", r"data\.split: splits the cases once"),
        (["data.split.by=list", "data.split.validation=[phantom_000]"], "all", r"data\.split: splits the"),
    ],
)
def test_folds_that_there_are_none_of(
    data: Path, cache: Path, tmp_path: Path, more: list[str], chosen: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train_folds(config(data, cache, *more), tmp_path / "cv", chosen)
    assert not (tmp_path / "cv").exists()


def test_an_out_that_holds_something_else(
    trained: tuple[Path, dict[str, Any]], data: Path, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"fold0: is not empty .*another --out"):
        train_folds(config(data, cache), trained[0] / "fold0")
    (tmp_path / "thesis.pdf").write_text("")
    with pytest.raises(ValueError, match=r"is not empty \(it holds thesis\.pdf\)"):
        train_folds(config(data, cache), tmp_path)
    with pytest.raises(ValueError, match="holds no cross-validation"):
        summarise(tmp_path)


def words(data: Path, cache: Path, out: Path, *more: str) -> list[str]:
    settings = [each for each in (*SETTINGS, *OF_FOLDS) if not each.startswith("data.split.fraction")]
    return ["train", str(data), *settings, f"cache.dir={cache}", "--out", str(out), "--quiet", *more]


def test_the_verb(trained: tuple[Path, dict[str, Any]], data: Path, cache: Path, tmp_path: Path) -> None:
    """Of folds that are finished: nothing is left to train."""
    out = Path(shutil.copytree(trained[0], tmp_path / "cv"))
    result = CliRunner().invoke(app, words(data, cache, out, "--folds", "0,1"))
    assert result.exit_code == 0, result.output
    assert "mean Dice" in result.stdout
    assert f"hasten predict {out} IMAGE" in result.stdout
    files = {"cv.yaml", "cv.json", "postprocessing.yaml", "report.html", "fold0", "fold1", "fold2"}
    assert {path.name for path in out.iterdir()} == files
    assert (out / "fold1/report.html").is_file()
    again = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert again.exit_code == 0, again.output
