"""A run's best weights on its validation cases, scored on the images' own voxels."""

from __future__ import annotations

import logging
from pathlib import Path

from hasten.cache.case_set import read_cases
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.evaluation.evaluate import Evaluation, evaluate_pairs, write_evaluation
from hasten.evaluation.pairs import Pair, Pairs
from hasten.observe.folds import VALIDATION
from hasten.observe.rundir import RUN_YAML
from hasten.prediction.ensemble import Member
from hasten.prediction.label_files import label_names
from hasten.prediction.predict import predict_cases

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_ROOM = 3.0
"""Factor of the last validation's time: reading images from files takes longer than from the cache."""


def validation_pairs(run: Path) -> Pairs:
    """The validation cases of a run, with the label maps that `predict_validation` writes. Raises ValueError."""
    config = load_run(run / RUN_YAML)
    case_set, _, validation = read_cases(config)
    names = label_names(validation)
    pairs = (
        Pair(case=case.id, prediction=run / VALIDATION / name, label=case.label, image=case.image)
        for case, name in zip(validation, names, strict=True)
        if case.label is not None
    )
    return Pairs(
        pairs=tuple(pairs), labels=case_set.labels, regions=case_set.regions, ignore=case_set.ignore,
        num_labelled=len(validation),
    )  # fmt: skip


def predict_validation(run: Path) -> None:
    """Write the label map of each validation case, by the best weights, into `run`/validation. Raises ValueError."""
    config = load_run(run / RUN_YAML)
    _, _, validation = read_cases(config)
    # The run has just trained a user-defined network with this code, so it is trusted.
    predict_cases(
        [Member(model_file(run), read_model(run))], validation, run / VALIDATION, overwrite=True,
        device=config.train.device, trust_changed_code=True,
    )  # fmt: skip


def score_validation(run: Path, *, surfaces: bool) -> Evaluation:
    """Score those label maps, and write evaluation.csv and evaluation.json beside them. Raises ValueError."""
    pairs, folder = validation_pairs(run), run / VALIDATION
    evaluation = evaluate_pairs(
        pairs, predictions=folder, labels=read_cases(load_run(run / RUN_YAML))[0].source, surfaces=surfaces
    )
    write_evaluation(evaluation, folder)
    return evaluation
