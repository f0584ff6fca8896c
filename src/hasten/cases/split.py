"""Splits cases into training and validation cases: by fraction, fold, list, or as nnU-Net does."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hasten.cases.entries import load_json
from hasten.cases.types import Case, CaseSet
from hasten.config.decision import Decision, set_by_user
from hasten.config.patterns import first_few
from hasten.config.schema import SplitConfig
from hasten.files import expanded

_FRACTION = 0.2
_NUM_FOLDS = 5
_SPLITS_FINAL = "splits_final.json"
_NNUNET_FOLDS = 5
_NNUNET_SEED = 12345
Fold = tuple[set[str], set[str]]
"""Ids of the training and the validation cases."""


def split_cases(case_set: CaseSet, config: SplitConfig) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Training and validation cases, each sorted by id; the order of the source's list does not matter.

    Raises ValueError for a setting that leaves either of them empty.
    """
    cases = sorted(case_set.cases, key=lambda case: case.id)
    if len(cases) < 2:
        raise ValueError(f"{case_set.source}: {len(cases)} case(s) cannot be split in two; add cases.")
    config, _ = choose_split(case_set, config)
    match config.by:
        case "fraction":
            assert config.fraction is not None
            if not 0.0 < config.fraction < 1.0:
                raise ValueError(
                    f"data.split.fraction is {config.fraction}; it must lie between 0 and 1, for example 0.2."
                )
            count = min(max(round(config.fraction * len(cases)), 1), len(cases) - 1)
            held_out = set(_shuffled([case.id for case in cases], config.seed)[:count])
        case "list":
            held_out = _listed({case.id for case in cases}, config, case_set)
        case "fold" | "nnunet":
            training, held_out = _fold(case_set, config)
            cases = [case for case in cases if case.id in training | held_out]
        case unknown:
            raise ValueError(f"data.split.by is {unknown!r}; use fraction, fold, list or nnunet.")
    train = _part([case for case in cases if case.id not in held_out], config)
    return train, tuple(case for case in cases if case.id in held_out)


def choose_split(case_set: CaseSet, config: SplitConfig) -> tuple[SplitConfig, Decision]:
    """The split with the fields that its kind needs, and the decision on the kind.

    What the user sets decides; else the cases that the source holds out, then its folds. Raises ValueError for settings
    that contradict each other or the source's folds.
    """
    decision = set_by_user(config.by) if config.by is not None else _decide_kind(case_set, config)
    settled = dataclasses.replace(config, by=decision.value)
    if settled.by == "fraction" and settled.fraction is None:
        settled = dataclasses.replace(settled, fraction=_FRACTION)
    if settled.by in ("fold", "nnunet"):
        numbers = fold_numbers(case_set, settled)
        fold = min(numbers, default=0) if settled.fold is None else settled.fold
        count = len(numbers) if settled.by == "fold" and settled.num_folds is None else settled.num_folds
        settled = dataclasses.replace(settled, fold=fold, num_folds=count)
        whose = f", by the folds of {case_set.source.name}" if settled.by == "fold" and case_set.folds else ""
        decision = dataclasses.replace(decision, reason=f"{decision.reason}; fold {fold} is validated on{whose}")
    return settled, decision


def _decide_kind(case_set: CaseSet, config: SplitConfig) -> Decision:
    values = {"fraction": config.fraction, "fold": config.fold, "num_folds": config.num_folds}
    given = [name for name, value in values.items() if value is not None] + ["validation"] * bool(config.validation)
    kinds = {"fraction": "fraction", "fold": "fold", "num_folds": "fold", "validation": "list"}
    wanted = {kinds[name] for name in given}
    if len(wanted) > 1:
        names = " and ".join(f"data.split.{name}" for name in given)
        raise ValueError(f"{names} are set, which are for different splits; leave one out, or set data.split.by.")
    if wanted:
        return Decision(wanted.pop(), f"data.split.{given[0]} is set")
    name, count = case_set.source.name, len(case_set.cases)
    if case_set.held_out:
        return Decision("list", f"{name} holds out {len(case_set.held_out)} of {count} cases for validation")
    if case_set.folds:
        shown = first_few(sorted(set(case_set.folds.values())), 5)
        return Decision("fold", f"{name} gives the fold ({shown}) of {len(case_set.folds)} of {count} cases")
    return Decision("fraction", f"{name} names no cases for validation and no folds")


def split_warnings(
    case_set: CaseSet, config: SplitConfig, train: Iterable[Case], validation: Iterable[Case]
) -> tuple[str, ...]:
    """Warnings where a split is not the one that the source declares, or leaves cases out other than by train_range."""
    texts = []
    by = choose_split(case_set, config)[0].by
    validated = {case.id for case in validation}
    lost = [case_id for case_id in case_set.held_out if case_id not in validated]
    if lost and by != "fold":
        texts.append(
            f"holds out cases for validation, but data.split.by is {by}, by which {len(lost)} of them are not "
            f"validated on: {first_few(lost)}"
        )
    elif lost:
        which = f"{len(lost)} cases for validation, which are in the folds like all others"
        texts.append(f"holds out {which}: {first_few(lost)}")
    if case_set.folds and by != "fold":
        apart = "cases that they keep together may be in both parts"
        texts.append(f"its folds are not used, as data.split.by is {by}; {apart}")
    without = [case.id for case in case_set.cases if case.id not in case_set.folds]
    if case_set.folds and by == "fold" and without:
        texts.append(f"{len(without)} cases have no fold and are trained on in every fold: {first_few(without)}")
    used = validated | {case.id for case in train}
    rest = [case.id for case in case_set.cases if case.id not in used] if config.train_range == (0, 1) else []
    if rest:
        texts.append(
            f"data.split leaves out {len(rest)} of {len(case_set.cases)} cases ({first_few(rest)}); add them to a part "
            "of splits_final.json, or use another data.split.by"
        )
    return tuple(f"{case_set.source}: {text}" for text in texts)


def _part(train: list[Case], config: SplitConfig) -> tuple[Case, ...]:
    """The cases of `config.train_range`; neighbouring ranges share none."""
    first, last = (round(share * len(train)) for share in config.train_range)
    used = set(_shuffled([case.id for case in train], config.seed)[first:last])
    if not used:
        raise ValueError(
            f"data.split.train_range: {list(config.train_range)} of {len(train)} training cases holds none; widen it."
        )
    return tuple(case for case in train if case.id in used)


def fold_numbers(case_set: CaseSet, config: SplitConfig) -> list[int]:
    """The numbers of the folds, for data.split.by fold or nnunet. Raises ValueError for folds that there can't be."""
    return list(_folds_of(case_set, config)[1])


def _folds_of(case_set: CaseSet, config: SplitConfig) -> tuple[str, dict[int, Fold]]:
    """Where the folds of a set are from, and each by its number: nnU-Net's, the source's, or drawn. Raises ValueError.

    nnU-Net's are those of a splits_final.json in $nnUNet_preprocessed/DatasetNNN_Name or beside the dataset.json, else
    the five that nnU-Net itself would draw.
    """
    ids = sorted(case.id for case in case_set.cases)
    if config.by == "nnunet":
        path = find_splits(case_set)
        return str(path or case_set.source), dict(enumerate(_read_splits(path) if path else draw_nnunet_folds(ids)))
    numbers, count = sorted(set(case_set.folds.values())), config.num_folds
    if numbers:
        unplaced = [case_id for case_id in case_set.held_out if case_id not in case_set.folds]
        if unplaced or count not in (None, len(numbers)):
            raise ValueError(
                f"{case_set.source}: gives its cases the folds {first_few(numbers, 8)}"
                f"{f', and holds out cases that are in none: {first_few(unplaced)}' if unplaced else ''}; correct "
                "them, leave data.split.num_folds out, or set data.split.by=list to validate on what is held out."
            )
        parts = {number: {each for each, fold in case_set.folds.items() if fold == number} for number in numbers}
    else:
        count = _NUM_FOLDS if count is None else count
        if not 2 <= count <= len(ids):
            raise ValueError(
                f"data.split.num_folds is {count}; it must lie between 2 and the number of cases, {len(ids)}."
            )
        order = _shuffled(ids, config.seed)
        parts = {number: set(order[number::count]) for number in range(count)}
    return str(case_set.source), {number: (set(ids) - part, part) for number, part in parts.items()}


def _fold(case_set: CaseSet, config: SplitConfig) -> Fold:
    """The ids of the training and the validation cases of a fold, possibly not all of the set. Raises ValueError."""
    where, folds = _folds_of(case_set, config)
    if config.fold not in folds:
        raise ValueError(f"data.split.fold is {config.fold}; {where} has the folds {first_few(list(folds), 8)}.")
    train, validation = folds[config.fold]
    unknown = sorted((train | validation) - {case.id for case in case_set.cases})
    if unknown or not train or not validation or train & validation:
        raise ValueError(
            f"{where}: fold {config.fold} must have training and validation cases of {case_set.source}, none in "
            f"both{f', but names {first_few(unknown)}' if unknown else ''}; correct it, or "
            "draw others (data.split.by=fold)."
        )
    return train, validation


def _listed(ids: set[str], config: SplitConfig, case_set: CaseSet) -> set[str]:
    requested = set(config.validation or case_set.held_out)
    if not requested:
        raise ValueError(
            f"data.split.validation is empty, and {case_set.source} holds out no cases itself; name case ids there, or "
            "set data.split.by to fraction."
        )
    unknown = sorted(requested - ids)
    if unknown:
        similar = {name for wrong in unknown for name in difflib.get_close_matches(wrong, ids, n=2)}
        raise ValueError(
            f"data.split.validation: {case_set.source} has no case {first_few(unknown)}; "
            f"the nearest ids are {first_few(sorted(similar or ids))}; name some that it has."
        )
    if requested == ids:
        where = "data.split.validation" if config.validation else str(case_set.source)
        raise ValueError(f"{where} holds out all {len(ids)} cases, which leaves none to train on; remove some of them.")
    return requested


def _shuffled(ids: list[str], seed: int) -> list[str]:
    return [ids[i] for i in np.random.default_rng(seed).permutation(len(ids))]


def find_splits(case_set: CaseSet) -> Path | None:
    """The splits_final.json of a set, if there is one."""
    folder = case_set.source if case_set.source.is_dir() else case_set.source.parent
    preprocessed = os.environ.get("nnUNet_preprocessed")  # noqa: SIM112 - nnU-Net spells it so
    places = [expanded(preprocessed) / folder.name] if preprocessed else []
    return next((place / _SPLITS_FINAL for place in (*places, folder) if (place / _SPLITS_FINAL).is_file()), None)


def draw_nnunet_folds(ids: list[str]) -> list[Fold]:
    """The folds that nnU-Net draws from sorted ids: scikit-learn's shuffled KFold with its seed.

    Raises ValueError for fewer cases than folds.
    """
    if len(ids) < _NNUNET_FOLDS:
        raise ValueError(
            f"data.split.by is nnunet, which makes {_NNUNET_FOLDS} folds, but there are {len(ids)} cases; "
            "use by=fraction."
        )
    order = np.arange(len(ids))
    np.random.RandomState(_NNUNET_SEED).shuffle(order)  # what nnU-Net draws with
    parts = [{ids[i] for i in part} for part in np.array_split(order, _NNUNET_FOLDS)]
    return [(set(ids) - part, part) for part in parts]


def _read_splits(path: Path) -> list[Fold]:
    content = load_json(path)
    try:
        splits = [(set(map(str, fold["train"])), set(map(str, fold["val"]))) for fold in content]
    except (TypeError, KeyError):
        splits = []
    if not splits:
        raise ValueError(f'{path}: must be a list of {{"train": [ids], "val": [ids]}}, one for each fold.')
    return splits
