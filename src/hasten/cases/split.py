"""Splits cases into training and validation cases: by fraction, fold, list, or as nnU-Net does."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import numpy as np

from hasten.cases.entries import load_json
from hasten.cases.types import Case, CaseSet
from hasten.config.patterns import first_few
from hasten.config.schema import SplitConfig
from hasten.files import expanded

_SPLITS_FINAL = "splits_final.json"
_NNUNET_FOLDS = 5
_NNUNET_SEED = 12345


def split_cases(case_set: CaseSet, config: SplitConfig) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Training and validation cases, each sorted by id; the order of the source's list does not matter.

    Raises ValueError for a setting that leaves either of them empty.
    """
    cases = sorted(case_set.cases, key=lambda case: case.id)
    if len(cases) < 2:
        raise ValueError(f"{case_set.source}: {len(cases)} case(s) cannot be split in two; add cases.")
    if case_set.held_out and config.by != "list":
        raise ValueError(
            f"data.split.by is {config.by}, but {case_set.source} itself holds out {len(case_set.held_out)} cases for "
            f"validation: {first_few(case_set.held_out)}; set data.split.by=list to validate on these, or, to split "
            "all cases anew, take its validation list or the field split out of it."
        )
    match config.by:
        case "fraction":
            held_out = _draw_fraction([case.id for case in cases], config)
        case "fold":
            held_out = _draw_fold([case.id for case in cases], config)
        case "list":
            held_out = _listed({case.id for case in cases}, config, case_set)
        case "nnunet":
            training, held_out = nnunet_fold(case_set, config.fold)
            cases = [case for case in cases if case.id in training | held_out]
        case unknown:
            raise ValueError(f"data.split.by is {unknown!r}; use fraction, fold, list or nnunet.")
    train = _part([case for case in cases if case.id not in held_out], config)
    return train, tuple(case for case in cases if case.id in held_out)


def _part(train: list[Case], config: SplitConfig) -> tuple[Case, ...]:
    """The cases of `config.train_range`; neighbouring ranges share none."""
    first, last = (round(share * len(train)) for share in config.train_range)
    used = set(_shuffled([case.id for case in train], config.seed)[first:last])
    if not used:
        raise ValueError(
            f"data.split.train_range: {list(config.train_range)} of {len(train)} training cases holds none; widen it."
        )
    return tuple(case for case in train if case.id in used)


def _draw_fraction(ids: list[str], config: SplitConfig) -> set[str]:
    if not 0.0 < config.fraction < 1.0:
        raise ValueError(f"data.split.fraction is {config.fraction}; it must lie between 0 and 1, for example 0.2.")
    count = min(max(round(config.fraction * len(ids)), 1), len(ids) - 1)
    return set(_shuffled(ids, config.seed)[:count])


def _draw_fold(ids: list[str], config: SplitConfig) -> set[str]:
    if not 2 <= config.num_folds <= len(ids):
        raise ValueError(
            f"data.split.num_folds is {config.num_folds}; it must lie between 2 and the number of cases, {len(ids)}."
        )
    if not 0 <= config.fold < config.num_folds:
        last = config.num_folds - 1
        raise ValueError(f"data.split.fold is {config.fold}; with {config.num_folds} folds it must be 0 to {last}.")
    return {case_id for i, case_id in enumerate(_shuffled(ids, config.seed)) if i % config.num_folds == config.fold}


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
    left = set(case_set.held_out) - requested
    if left:
        raise ValueError(
            f"data.split.validation: {case_set.source} itself holds out {first_few(sorted(left))}, which would be "
            "trained on; name these, too, or leave data.split.validation out to validate on all that it holds out."
        )
    if requested == ids:
        where = "data.split.validation" if config.validation else str(case_set.source)
        raise ValueError(f"{where} holds out all {len(ids)} cases, which leaves none to train on; remove some of them.")
    return requested


def _shuffled(ids: list[str], seed: int) -> list[str]:
    return [ids[i] for i in np.random.default_rng(seed).permutation(len(ids))]


def nnunet_fold(case_set: CaseSet, fold: int) -> tuple[set[str], set[str]]:
    """Ids of the training and the validation cases of a fold, possibly not all cases of the set.

    A splits_final.json is looked for in $nnUNet_preprocessed/DatasetNNN_Name, then beside the dataset.json; without
    one the folds are the five that nnU-Net itself would draw. Raises ValueError for a fold that does not exist, a
    file of another form, and ids that the set lacks.
    """
    where, splits = nnunet_folds(case_set)
    ids = [case.id for case in case_set.cases]
    if not 0 <= fold < len(splits):
        raise ValueError(f"data.split.fold is {fold}; {where} has {len(splits)} folds, 0 to {len(splits) - 1}.")
    train, validation = splits[fold]
    unknown = sorted((train | validation) - set(ids))
    if unknown:
        raise ValueError(
            f"{where}: fold {fold} names {len(unknown)} cases that {case_set.source} lacks: {first_few(unknown)}; "
            "restore the cases, or correct the file."
        )
    if not train or not validation or train & validation:
        wrong = "has cases in both parts" if train & validation else "leaves a part empty"
        raise ValueError(f"{where}: fold {fold} {wrong}; correct the file, or set data.split.by=fold.")
    return train, validation


def nnunet_folds(case_set: CaseSet) -> tuple[str, list[tuple[set[str], set[str]]]]:
    """The source of a set's folds, and the ids of the training and validation cases of each. Raises ValueError."""
    path = find_splits(case_set)
    splits = _read_splits(path) if path else draw_nnunet_folds(sorted(case.id for case in case_set.cases))
    return str(path or case_set.source), splits


def find_splits(case_set: CaseSet) -> Path | None:
    """The splits_final.json of a set, if there is one."""
    folder = case_set.source if case_set.source.is_dir() else case_set.source.parent
    preprocessed = os.environ.get("nnUNet_preprocessed")  # noqa: SIM112 - nnU-Net spells it so
    places = [expanded(preprocessed) / folder.name] if preprocessed else []
    return next((place / _SPLITS_FINAL for place in (*places, folder) if (place / _SPLITS_FINAL).is_file()), None)


def draw_nnunet_folds(ids: list[str]) -> list[tuple[set[str], set[str]]]:
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


def _read_splits(path: Path) -> list[tuple[set[str], set[str]]]:
    content = load_json(path)
    try:
        splits = [(set(map(str, fold["train"])), set(map(str, fold["val"]))) for fold in content]
    except (TypeError, KeyError):
        splits = []
    if not splits:
        raise ValueError(f'{path}: must be a list of {{"train": [ids], "val": [ids]}}, one for each fold.')
    return splits
