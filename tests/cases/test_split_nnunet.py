from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hasten.cases.split import split_cases
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import SplitConfig

IDS = [f"case_{number:03d}" for number in range(12)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    (tmp_path / "raw/Dataset001_A").mkdir(parents=True)
    return tmp_path / "raw/Dataset001_A"


def case_set(folder: Path, ids: list[str] = IDS) -> CaseSet:
    cases = tuple(Case(id=name, image=(Path(name),), label=Path(name)) for name in ids)
    return CaseSet(name="A", source=folder / "dataset.json", cases=cases, labels={0: "background", 1: "a"})


def held_out(folder: Path, fold: int) -> tuple[list[str], list[str]]:
    train, validation = split_cases(case_set(folder), SplitConfig(by="nnunet", fold=fold))
    return [case.id for case in train], [case.id for case in validation]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_without_a_file_the_folds_are_those_that_nnunet_draws(folder: Path) -> None:
    # KFold(n_splits=5, shuffle=True, random_state=12345) of scikit-learn on 12 sorted ids
    expected = [{0, 3, 8}, {7, 10, 11}, {6, 9}, {1, 4}, {2, 5}]
    for fold in range(5):
        train, validation = held_out(folder, fold)
        assert {IDS.index(name) for name in validation} == expected[fold]
        assert sorted(train + validation) == IDS
    with pytest.raises(ValueError, match=r"data.split.fold is 5; .* has the folds 0, 1, 2, 3, 4"):
        held_out(folder, 5)
    with pytest.raises(ValueError, match=r"makes 5 folds, but there are 4 cases; use by=fraction"):
        split_cases(case_set(folder, IDS[:4]), SplitConfig(by="nnunet"))


def test_the_preprocessed_folders_file_comes_before_the_one_beside(folder: Path) -> None:
    write(folder / "splits_final.json", [{"train": IDS[:2], "val": IDS[2:3]}, {"train": IDS[4:6], "val": IDS[:1]}])
    assert held_out(folder, 0) == (IDS[:2], IDS[2:3])
    assert held_out(folder, 1) == (IDS[4:6], IDS[:1])
    write(folder.parents[1] / "preprocessed/Dataset001_A/splits_final.json", [{"train": IDS[5:], "val": IDS[:5]}])
    assert held_out(folder, 0) == (IDS[5:], IDS[:5])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([], "must be a list of"),
        ({"train": []}, "must be a list of"),
        ([{"train": ["case_000"]}], "must be a list of"),
        ([{"train": ["case_000"], "val": ["x", "y"]}], "fold 0 must have .*, but names x, y; correct"),
        ([{"train": ["case_000"], "val": []}], "fold 0 must have training and validation"),
        ([{"train": ["case_000"], "val": ["case_000"]}], "fold 0 must have .* none in both;"),
    ],
)
def test_a_bad_file(folder: Path, content: Any, what: str) -> None:
    write(folder / "splits_final.json", content)
    with pytest.raises(ValueError, match=what) as error:
        held_out(folder, 0)
    assert "splits_final.json" in str(error.value)
