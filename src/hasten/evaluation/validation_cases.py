"""A run's best weights on its validation cases, scored on the images' own voxels."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.cache.case_set import read_cases
from hasten.cases.types import Case
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.distribute.world import World
from hasten.evaluation.evaluate import Evaluation, evaluate_pairs, write_evaluation
from hasten.evaluation.pairs import Pair, Pairs
from hasten.observe.clock import Clock
from hasten.observe.folds import VALIDATION, is_finished
from hasten.observe.lock import run_lock
from hasten.observe.rundir import METRICS_JSONL, RUN_YAML, SUMMARY_JSON, read_jsonl, write_json
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


def predict_validation(run: Path, *, device: str | None = None, rank: int = 0, size: int = 1) -> None:
    """Write the label map of each validation case, by the best weights, into `run`/validation.

    rank, size: of several processes that share the cases. device: None takes that of the run. Raises ValueError.
    """
    config = load_run(run / RUN_YAML)
    _, _, validation = read_cases(config)
    _predict(run, validation[rank::size], device or config.train.device)


def _predict(run: Path, cases: Sequence[Case], device: str) -> None:
    if cases:
        # The run has just trained a user-defined network with this code, so it is trusted.
        predict_cases(
            [Member(model_file(run), read_model(run))], cases, run / VALIDATION, overwrite=True, device=device,
            trust_changed_code=True,
        )  # fmt: skip


def _predict_remaining(run: Path, device: str) -> None:
    """Wait for the label maps of the other ranks, and predict those that do not appear."""
    config, weights_ns = load_run(run / RUN_YAML), model_file(run).stat().st_mtime_ns
    cases = {case.id: case for case in read_cases(config)[2]}
    pairs = validation_pairs(run).pairs
    last, since = len(pairs) + 1, time.monotonic()
    while remaining := [pair.case for pair in pairs if not _is_after(pair.prediction, weights_ns)]:
        if len(remaining) < last:
            last, since = len(remaining), time.monotonic()
        elif time.monotonic() - since > config.distribute.timeout_s:
            _predict(run, [cases[case] for case in remaining], device)
            return
        time.sleep(_LOOK_S)


def _is_after(path: Path, time_ns: int) -> bool:
    return path.exists() and path.stat().st_mtime_ns >= time_ns


def score_validation(run: Path, *, surfaces: bool) -> Evaluation:
    """Score those label maps, and write evaluation.csv and evaluation.json beside them. Raises ValueError."""
    pairs, folder = validation_pairs(run), run / VALIDATION
    evaluation = evaluate_pairs(
        pairs, predictions=folder, labels=read_cases(load_run(run / RUN_YAML))[0].source, surfaces=surfaces
    )
    write_evaluation(evaluation, folder)
    return evaluation


def with_own_grid(
    summary: dict[str, Any], run: Path, clock: Clock, reserve_s: float, *, world: World, device: str
) -> dict[str, Any]:
    """The summary of a finished run, with `own_grid` added: Dice and IoU on the voxels of the label files.

    Only where preparation resampled, as the voxels are the same otherwise, and where train.max_seconds leaves time.
    Ranks share the cases, without a collective that could time out; the summary of rank 0 is the one with the scores.
    Whatever fails here is a warning: the trained model is safe.
    """
    if not summary.get("resampled") or "own_grid" in summary or not is_finished(run):
        return summary
    limit = load_run(run / RUN_YAML).train.max_seconds
    validations = [line for line in read_jsonl(run / METRICS_JSONL) if line.get("kind") == "validation"]
    if limit is not None and validations:
        remaining_s = limit - reserve_s - summary["earlier_seconds"] - clock.elapsed
        if remaining_s < _ROOM * validations[-1]["seconds"]:
            log.warning("%s: train.max_seconds leaves no time to score the images' own voxels", run)
            return summary
    clock.tell("scoring    the validation cases on the voxels of the images' files")
    try:
        if not world.first:
            predict_validation(run, device=device, rank=world.rank, size=world.size)
            return summary
        with run_lock(run, resume=True):
            predict_validation(run, device=device, rank=world.rank, size=world.size)
            _predict_remaining(run, device)
            evaluation = score_validation(run, surfaces=False)
            summary = {**summary, "own_grid": own_grid_of(evaluation)}
            write_json(run / SUMMARY_JSON, summary)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        log.warning("%s: the validation cases could not be scored on the images' own voxels: %s", run, error)
    return summary


def own_grid_of(evaluation: Evaluation) -> dict[str, Any]:
    """The entry of `evaluation` in summary.json."""
    per_class = {name: evaluation.summary(name, "dice").mean for name in evaluation.names}
    return {
        "dice": _plain(evaluation.mean("dice")),
        "iou": _plain(evaluation.mean("iou")),
        "dice_per_class": {name: _plain(value) for name, value in per_class.items()},
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
