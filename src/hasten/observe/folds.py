"""The folder of a cross-validation: an ordinary run directory for each fold, and the files about all of them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from hasten.observe.rundir import RUN_YAML, SUMMARY_JSON

log = logging.getLogger(__name__)

CV_YAML = "cv.yaml"
"""The settings of all folds, as passed by the user."""
CV_JSON = "cv.json"
POSTPROCESSING_YAML = "postprocessing.yaml"
VALIDATION = "validation"
"""Folder of a run: label maps of its validation cases on their own grid, predicted by the best weights."""
_DONE = ("finished", "target_reached", "time_up")


def is_cross_validation(folder: Path) -> bool:
    return (folder / CV_YAML).is_file()


def refuse_cross_validation(folder: Path) -> None:
    """Raise ValueError for the folder of a cross-validation, naming a fold to use instead."""
    if is_cross_validation(folder):
        fold = next(iter(fold_runs(folder).values()), fold_folder(folder, 0))
        raise ValueError(f"{folder}: is a cross-validation, not a run; name one of its folds, such as {fold}")


def fold_folder(folder: Path, fold: int) -> Path:
    return folder / f"fold{fold}"


def fold_runs(folder: Path) -> dict[int, Path]:
    """The runs that have started, by fold."""
    folders = {int(match[1]): path for path in folder.iterdir() if (match := re.fullmatch(r"fold(\d+)", path.name))}
    return {fold: folders[fold] for fold in sorted(folders) if (folders[fold] / RUN_YAML).is_file()}


def is_finished(run: Path) -> bool:
    """Whether the training of a run was completed, not interrupted."""
    try:
        return json.loads((run / SUMMARY_JSON).read_bytes())["status"] in _DONE
    except (OSError, ValueError, KeyError, TypeError):
        return False


def finished_folds(folder: Path) -> list[Path]:
    """The finished runs of a cross-validation; logs a warning that names the others.

    Raises ValueError where there is none.
    """
    runs = fold_runs(folder)
    finished = [run for run in runs.values() if is_finished(run)]
    if not finished:
        raise ValueError(f"{folder}: no fold is finished yet; train them with the command that began them")
    unfinished = [run.name for run in runs.values() if run not in finished]
    if unfinished:
        verb = "is" if len(unfinished) == 1 else "are"
        log.warning("%s: %s %s not finished and left out", folder, ", ".join(unfinished), verb)
    return finished
