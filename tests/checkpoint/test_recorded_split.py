"""A run goes on with the cases that it was begun with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hasten.cases.types import Case
from hasten.checkpoint.recorded_split import require_same_cases, split_record, trained_on
from hasten.observe.rundir import PLAN_JSON, SUMMARY_JSON, write_json
from hasten.phantoms.organs import write_phantoms
from hasten.training.folds import train_folds
from hasten.training.run import train
from tests.training.runs import at_step, config_of, resumed

Parts = tuple[list[Case], list[Case]]


def parts(folder: Path, train: str, validation: str) -> Parts:
    def case(name: str) -> Case:
        for kind in ("image", "label"):
            path = folder / f"{name}.{kind}"
            if not path.exists():
                path.write_bytes(b"12345")
        return Case(id=name, image=(folder / f"{name}.image",), label=folder / f"{name}.label")

    return [case(name) for name in train], [case(name) for name in validation]


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Begun with a to f trained on, and x and y validated."""
    record = split_record(*parts(tmp_path, "abcdef", "xy"))
    assert {part: {key: sorted(files) for key, files in cases.items()} for part, cases in record.items()} == {
        "train": {key: ["image", "label"] for key in "abcdef"},
        "validation": {key: ["image", "label"] for key in "xy"},
    }
    write_json(tmp_path / PLAN_JSON, {"cases": record})
    return tmp_path


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        ("abcdefg", "xy", "g added"),
        ("abc", "xy", "d, e, f gone"),
        ("abcdeghijklmf", "xy", "g, h, i, j, k and 2 more added"),
        ("bcdefx", "ay", "a trained on before and validated now; x validated before and trained on now"),
    ],
)
def test_other_cases_are_refused(begun: Path, train: str, validation: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"begun with: {message}. restore the data set, or train into another --out"):
        require_same_cases(begun, *parts(begun, train, validation))


def warnings_of(caplog: pytest.LogCaptureFixture, begun: Path, cases: Path | None = None) -> list[str]:
    caplog.clear()
    require_same_cases(begun, *parts(cases or begun, "abcdef", "xy"))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", ["c.label", "c.image", "x.label"])
@pytest.mark.parametrize("same_time", [False, True])
def test_other_content_of_the_same_size_is_a_warning(
    begun: Path, caplog: pytest.LogCaptureFixture, name: str, same_time: bool
) -> None:
    before = (begun / name).stat()
    (begun / name).write_bytes(b"54321")
    os.utime(begun / name, ns=(before.st_atime_ns, before.st_mtime_ns + (0 if same_time else 10**9)))
    [message] = warnings_of(caplog, begun)
    assert f"files of {name[0]} have changed" in message


def record_in(run: Path, cases: tuple[list[Case], list[Case]]) -> Path:
    run.mkdir()
    write_json(run / PLAN_JSON, {"cases": split_record(*cases)})
    return run


@pytest.mark.parametrize("kind", ["image", "label"])
def test_training_cases_are_known_by_content_and_not_by_name(tmp_path: Path, kind: str) -> None:
    for number, name in enumerate("abxyz"):
        for each in ("image", "label"):
            (tmp_path / f"{name}.{each}").write_text(f"{each} {number}")
    one = record_in(tmp_path / "one", parts(tmp_path, "ab", "x"))
    two = record_in(tmp_path / "two", parts(tmp_path, "bx", "a"))
    files = {name: [tmp_path / f"{name}.{kind}"] for name in "axz"}
    (tmp_path / "renamed").write_bytes((tmp_path / f"b.{kind}").read_bytes())
    files["renamed"] = [tmp_path / "renamed"]
    other = tmp_path / "other"
    other.mkdir()
    (other / f"b.{kind}").write_text(f"{kind} 9")
    files["b"] = [other / f"b.{kind}"]
    renamed = {"renamed": [str(one), str(two)]} if kind == "image" else {}  # label maps may be empty, and so alike
    found = trained_on([one, two, tmp_path / "unknown"], files, kind)
    assert found == {"a": [str(one)], "x": [str(two)], **renamed}


def test_neither_a_run_nor_a_fold_goes_on_with_more_cases(tmp_path: Path) -> None:
    source = write_phantoms(tmp_path / "set", num_cases=6, shape=(16, 24, 24))
    config = config_of(source, tmp_path / "cache", "train.steps=4", "data.split.by=fold", "data.split.num_folds=2")
    run, folds = tmp_path / "run", tmp_path / "folds"
    with at_step(2, "interrupt"), pytest.raises(KeyboardInterrupt):
        train(config, run)
    train_folds(config, folds, [0])
    shutil.rmtree(source if source.is_dir() else source.parent)
    write_phantoms(tmp_path / "set", num_cases=8, shape=(16, 24, 24))
    with pytest.raises(ValueError, match=r"run: the cases are not those .* phantom_006, phantom_007 added"):
        train(resumed(run), run, resume=True)
    with pytest.raises(ValueError, match=r"fold0: the cases are not those .* phantom_006, phantom_007 added"):
        train_folds(config, folds, [1])
    assert not (run / SUMMARY_JSON).exists() or json.loads((run / SUMMARY_JSON).read_text())["status"] == "interrupted"
    assert not (folds / "fold1").exists()
