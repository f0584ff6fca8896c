from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases.split import choose_split, split_cases, split_warnings
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import SplitConfig


def case_set(ids: list[str]) -> CaseSet:
    cases = tuple(Case(id=i, image=(Path(i),), label=Path(i)) for i in ids)
    return CaseSet(name="s", source=Path("list.json"), cases=cases, labels={0: "background", 1: "a"})


def ids(cases: tuple[Case, ...]) -> list[str]:
    return [case.id for case in cases]


@given(num=st.integers(2, 40), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 5), data=st.data())
def test_fraction(num: int, fraction: float, seed: int, data: st.DataObject) -> None:
    names = [f"c{i:02d}" for i in range(num)]
    shuffled = data.draw(st.permutations(names))
    config = SplitConfig(fraction=fraction, seed=seed)
    train, val = split_cases(case_set(names), config)
    assert sorted(ids(train) + ids(val)) == names
    assert train
    assert val
    assert abs(len(val) - fraction * num) <= 1
    assert split_cases(case_set(list(shuffled)), config) == (train, val)


@given(num=st.integers(2, 30), folds=st.integers(2, 7))
def test_folds_partition_the_cases(num: int, folds: int) -> None:
    names = [f"c{i:02d}" for i in range(num)]
    if folds > num:
        with pytest.raises(ValueError, match=r"data.split.num_folds"):
            split_cases(case_set(names), SplitConfig(by="fold", num_folds=folds))
        return
    vals = []
    for fold in range(folds):
        train, val = split_cases(case_set(names), SplitConfig(by="fold", fold=fold, num_folds=folds))
        assert sorted(ids(train) + ids(val)) == names
        assert num // folds <= len(val) <= num // folds + 1
        vals += ids(val)
    assert sorted(vals) == names


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (SplitConfig(fraction=0.0), "data.split.fraction is 0.0"),
        (SplitConfig(fraction=1.0), "data.split.fraction is 1.0"),
        (SplitConfig(by="fold", fold=5), "has the folds 0, 1, 2, 3, 4"),
        (SplitConfig(by="fold", fold=-1), "has the folds 0, 1, 2, 3, 4"),
        (SplitConfig(by="fold", num_folds=1), "num_folds is 1"),
        (SplitConfig(by="list"), "validation is empty"),
        (SplitConfig(by="list", validation=("case_09", "x")), "no case case_09, x; the nearest ids are case_0"),
        (SplitConfig(by="list", validation=tuple(f"case_{i:02d}" for i in range(6))), "leaves none to train on"),
        (SplitConfig(by="draw"), "use fraction, fold, list or nnunet"),  # type: ignore[arg-type]
    ],
)
def test_refused(config: SplitConfig, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        split_cases(case_set([f"case_{i:02d}" for i in range(6)]), config)


GROUPS = {"c0": 1, "c1": 1, "c2": 2, "c3": 2, "c4": 4, "c5": 4}


@pytest.mark.parametrize(
    ("held_out", "folds", "given", "by", "validated", "words"),
    [
        ("", {}, {}, "fraction", None, []),
        ("c1 c4", {}, {}, "list", "c1 c4", []),
        ("", GROUPS, {}, "fold", "c0 c1", []),
        ("", GROUPS, {"fold": 4}, "fold", "c4 c5", []),
        ("", GROUPS, {"by": "fold", "fold": 2, "num_folds": 3}, "fold", "c2 c3", []),
        ("", GROUPS | {"c5": None}, {"fold": 4}, "fold", "c4", ["1 cases have no fold", "c5"]),
        ("c1 c4", GROUPS, {}, "list", "c1 c4", ["its folds are not used", "is list"]),
        ("c1 c4", GROUPS, {"fold": 2}, "fold", "c2 c3", ["holds out 2 cases"]),
        ("c1 c4", {}, {"num_folds": 2}, "fold", None, ["which are in the folds like all others"]),
        ("c1 c4", {}, {"validation": ("c1", "c5")}, "list", "c1 c5", ["1 of them", "c4"]),
        ("c1 c4", {}, {"fraction": 0.2}, "fraction", None, ["data.split.by is fraction"]),
        ("", GROUPS, {"by": "fraction"}, "fraction", None, ["its folds are not used", "is fraction"]),
        ("", GROUPS, {"by": "nnunet"}, "nnunet", None, ["its folds are not used", "is nnunet"]),
    ],
)
def test_what_is_set_decides_and_then_the_source(
    held_out: str, folds: dict[str, int | None], given: dict[str, Any], by: str, validated: str | None, words: list[str]
) -> None:
    names = [f"c{number}" for number in range(6)]
    placed = {name: fold for name, fold in folds.items() if fold is not None}
    source = dataclasses.replace(case_set(names), held_out=tuple(held_out.split()), folds=placed)
    settled, decision = choose_split(source, SplitConfig(**given))
    assert settled.by == decision.value == by
    assert ("by the folds of list.json" in decision.reason) == (by == "fold" and bool(folds))
    train, validation = split_cases(source, SplitConfig(**given))
    assert split_cases(source, settled) == (train, validation)
    assert sorted(ids(train) + ids(validation)) == names
    if validated is not None:
        assert ids(validation) == validated.split()
    warnings = " ".join(split_warnings(source, settled, train, validation))
    assert bool(warnings) == bool(words)
    assert [word for word in words if word not in warnings] == []


@pytest.mark.parametrize(
    ("held_out", "folds", "given", "message"),
    [
        ("", GROUPS, {"fold": 0}, r"data\.split\.fold is 0; list\.json has the folds 1, 2, 4"),
        ("", GROUPS, {"num_folds": 5}, r"list\.json: gives its cases the folds 1, 2, 4; correct"),
        ("", dict.fromkeys(GROUPS, 0), {}, "fold 0 must have training and validation cases"),
        ("c5", {"c0": 0, "c1": 1}, {"by": "fold"}, "holds out cases that are in none: c5"),
        ("", {}, {"fold": 1, "fraction": 0.2}, r"data\.split\.fraction and data\.split\.fold are set"),
    ],
)
def test_a_split_that_contradicts_the_source(
    held_out: str, folds: dict[str, int], given: dict[str, Any], message: str
) -> None:
    names = [f"c{number}" for number in range(6)]
    source = dataclasses.replace(case_set(names), held_out=tuple(held_out.split()), folds=folds)
    with pytest.raises(ValueError, match=message):
        split_cases(source, SplitConfig(**given))


@given(st.integers(4, 40), st.integers(0, 5), st.floats(0.3, 0.7))
def test_parts_of_the_training_cases(num: int, seed: int, share: float) -> None:
    cases = case_set([f"case{i}" for i in range(num)])
    whole, validation = split_cases(cases, SplitConfig(seed=seed))
    ranges = ((0.0, share), (share, 1.0))
    parts = [split_cases(cases, SplitConfig(seed=seed, train_range=each)) for each in ranges]
    assert [held_out for _, held_out in parts] == [validation] * 2
    assert all(ids(part) == sorted(ids(part)) for part, _ in parts)
    assert sorted(case.id for part, _ in parts for case in part) == ids(whole)
