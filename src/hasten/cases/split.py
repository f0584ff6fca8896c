"""Splits cases into training and validation cases."""

from __future__ import annotations

import difflib

import numpy as np

from hasten.cases.nnunet_split import nnunet_fold
from hasten.cases.types import Case, CaseSet
from hasten.config.patterns import first_few
from hasten.config.schema import SplitConfig


def split_cases(case_set: CaseSet, config: SplitConfig) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Training and validation cases, each sorted by id; the order of the source's list does not matter.

    Raises ValueError for a setting that leaves either of them empty.
    """
    cases = sorted(case_set.cases, key=lambda case: case.id)
    if len(cases) < 2:
        raise ValueError(f"{case_set.source}: {len(cases)} case(s) cannot be split in two; add cases.")
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
    requested = set(config.validation)
    if not requested:
        raise ValueError("data.split.validation is empty; name case ids there, or set data.split.by to fraction.")
    unknown = sorted(requested - ids)
    if unknown:
        similar = {name for wrong in unknown for name in difflib.get_close_matches(wrong, ids, n=2)}
        raise ValueError(
            f"data.split.validation: {case_set.source} has no case {first_few(unknown)}; "
            f"the nearest ids are {first_few(sorted(similar or ids))}; name some that it has."
        )
    if requested == ids:
        raise ValueError(
            f"data.split.validation names all {len(ids)} cases, which leaves none to train on; remove some of them."
        )
    return requested


def _shuffled(ids: list[str], seed: int) -> list[str]:
    return [ids[i] for i in np.random.default_rng(seed).permutation(len(ids))]
