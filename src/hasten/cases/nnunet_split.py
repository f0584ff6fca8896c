"""nnU-Net's cross-validation: the folds of a splits_final.json, or those that nnU-Net draws without one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hasten.cases.listing import load_json
from hasten.cases.types import CaseSet
from hasten.config.patterns import first_few

_NAME = "splits_final.json"
_NUM_DRAWN = 5
_SEED = 12345


def nnunet_fold(case_set: CaseSet, fold: int) -> tuple[set[str], set[str]]:
    """Ids of the training and the validation cases of a fold, possibly not all cases of the set.

    A splits_final.json is looked for in $nnUNet_preprocessed/DatasetNNN_Name, then beside the dataset.json; without
    one the folds are the five that nnU-Net itself would draw. Raises ValueError for a fold that there is none of, a
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
    """Where the folds of a set come from, and ids of training and validation cases of each. Raises ValueError."""
    path = find_splits(case_set)
    splits = _read(path) if path else drawn_folds(sorted(case.id for case in case_set.cases))
    return str(path or case_set.source), splits


def find_splits(case_set: CaseSet) -> Path | None:
    """The splits_final.json of a set, if there is one."""
    folder = case_set.source if case_set.source.is_dir() else case_set.source.parent
    preprocessed = os.environ.get("nnUNet_preprocessed")  # noqa: SIM112 - nnU-Net spells it so
    places = [Path(preprocessed).expanduser() / folder.name] if preprocessed else []
    return next((place / _NAME for place in (*places, folder) if (place / _NAME).is_file()), None)


def drawn_folds(ids: list[str]) -> list[tuple[set[str], set[str]]]:
    """The folds that nnU-Net draws from sorted ids: scikit-learn's shuffled KFold with its seed.

    Raises ValueError for less cases than folds.
    """
    if len(ids) < _NUM_DRAWN:
        raise ValueError(
            f"data.split.by is nnunet, which makes {_NUM_DRAWN} folds, but there are {len(ids)} cases; use by=fraction."
        )
    order = np.arange(len(ids))
    np.random.RandomState(_SEED).shuffle(order)  # what nnU-Net draws with
    parts = [{ids[i] for i in part} for part in np.array_split(order, _NUM_DRAWN)]
    return [(set(ids) - part, part) for part in parts]


def _read(path: Path) -> list[tuple[set[str], set[str]]]:
    content = load_json(path)
    try:
        splits = [(set(map(str, fold["train"])), set(map(str, fold["val"]))) for fold in content]
    except (TypeError, KeyError):
        splits = []
    if not splits:
        raise ValueError(f'{path}: must be a list of {{"train": [ids], "val": [ids]}}, one for each fold.')
    return splits
