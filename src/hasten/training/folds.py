"""`train_folds`: the folds of a cross-validation, each an ordinary run, in one folder."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from torch import nn

from hasten.cache.fingerprint import read_case_set
from hasten.cases.split import fold_numbers, split_cases
from hasten.cases.types import CaseSet
from hasten.checkpoint.custom_network import with_code
from hasten.checkpoint.recorded_split import require_same_cases
from hasten.config.load import dump_run, load_run
from hasten.config.patterns import first_few
from hasten.config.resume_rules import flat
from hasten.config.schema import RunConfig
from hasten.config.settled import with_settings
from hasten.distribute.world import detect_world
from hasten.evaluation.crossval import score_fold, summarise
from hasten.observe.folds import CV_YAML, fold_folder, fold_runs, is_finished
from hasten.observe.progress import Progress
from hasten.observe.rundir import LOGS, RANKS, RUN_YAML
from hasten.prediction.ensemble import changed_settings
from hasten.training.run import train
from hasten.training.stop import Stopped

log = logging.getLogger(__name__)

Folds = Literal["all"] | Sequence[int]


def train_folds(
    config: RunConfig,
    out: str | Path,
    folds: Folds = "all",
    *,
    progress: Progress | None = None,
    started: float | None = None,
    network: Callable[..., nn.Module] | None = None,
    weights: str | Path | None = None,
    loss: Callable[..., Any] | None = None,
    augment: Any = None,
) -> dict[str, Any]:
    """Train folds of a cross-validation one after another, each in `out`/foldN, and score each on its validation cases.

    The folds are those of data.split.by, `fold` or `nnunet`; left open it is `fold`, with the source's own folds if it
    gives any. A fold that is finished is left as it is, and one that was stopped is resumed, so the same call continues
    what it began; other processes may train other folds of the same `out` meanwhile. Scores are those on the images'
    own voxels.

    Args:
        config: settings; train.budget is that of each fold.
        out: folder of the cross-validation; new, empty, or begun by the same call.
        folds: their numbers, or "all".
        progress, started, network, weights, loss, augment: as `train` takes them.

    Returns:
        What cv.json holds: scores by case, by fold and over all cases.

    Raises:
        ValueError: for a fold that there is none of, settings that are not those that `out` was begun with, and an
            `out` that holds something else, before anything is trained; else what `train` raises.

    Example:
        >>> config = hasten.load_run(overrides=["data.source=path/to/dataset", "train.budget=5min"])
        >>> scores = hasten.train_folds(config, "runs/cv", (0, 1))
        >>> dice = scores["over_cases"]["dice"]
    """
    out, world = Path(out), detect_world()
    config = with_folds(with_code(config, network=network, weights=weights, loss=loss, augment=augment))
    case_set = read_case_set(config)
    chosen = _chosen(config, case_set, folds)
    if world.size > 1 and len(chosen) > 1:
        raise ValueError(f"--folds: {world.size} processes train one fold at a time; name one, as --folds {chosen[0]}")
    check_folder(out)
    if world.first:
        _settle(config, out)
        for fold, run in fold_runs(out).items():
            require_same_cases(run, *split_cases(case_set, at_fold(config, fold).data.split))
    for number, fold in enumerate(chosen, start=1):
        run, started = fold_folder(out, fold), started if fold == chosen[0] else None
        if progress is not None:
            progress.tell(f"fold {number} of {len(chosen)}  {run}")
        if is_finished(run):
            log.warning("%s: is finished", run)
        else:
            try:
                going_on = (run / RUN_YAML).is_file()
                own = at_fold(config if going_on else _with_first_network(config, out), fold)
                train(own, run, resume=going_on, progress=progress, started=started)
            except Stopped as stop:
                raise Stopped("stopped; the same command resumes there" if str(stop) else "", stop.signal) from None
        if world.first:
            score_fold(run)
    return summarise(out).to_dict() if world.first else {}


def _with_first_network(config: RunConfig, out: Path) -> RunConfig:
    """The settings of a further fold, with a time limit those of the network and patches that the first fold has.

    A new measurement might choose a wider network.
    """
    started = (run / RUN_YAML for run in fold_runs(out).values())
    path = next((path for path in started if path.is_file()), None)
    if path is None or config.train.budget is None:
        return config
    first = load_run(path)
    # Stages are those that fit into a fold's own time.
    sample = dataclasses.replace(first.sample, stages=config.sample.stages)
    return dataclasses.replace(config, network=first.network, sample=sample)


def with_folds(config: RunConfig) -> RunConfig:
    """The settings with a split that has folds. Raises ValueError where they ask for another split."""
    split = config.data.split
    if split.by in ("fold", "nnunet"):
        return config
    if split.by is not None or split.fraction is not None or split.validation:
        raise ValueError("data.split: splits the cases once; leave it out, or set data.split.by=fold (or nnunet)")
    return with_settings(config, "data", split=dataclasses.replace(split, by="fold"))


def at_fold(config: RunConfig, fold: int | None) -> RunConfig:
    return with_settings(config, "data", split=dataclasses.replace(config.data.split, fold=fold))


def _chosen(config: RunConfig, case_set: CaseSet, folds: Folds) -> list[int]:
    """Raises ValueError for a fold that there is none of, and for folds that the cases do not make."""
    numbers = fold_numbers(case_set, config.data.split)
    chosen = numbers if folds == "all" else sorted(set(map(int, folds)))
    unknown = [fold for fold in chosen if fold not in numbers]
    if unknown or not chosen:
        shown = ",".join(map(str, unknown)) or "none"
        there = f"there are {len(numbers)} folds, {first_few(numbers, 8)}"
        raise ValueError(f"--folds {shown}: {there}; name some of these, or all, or set data.split.num_folds")
    for fold in chosen:
        split_cases(case_set, at_fold(config, fold).data.split)
    return chosen


def check_folder(out: Path) -> None:
    """Raise ValueError if `out` cannot hold a cross-validation."""
    if out.is_dir() and not (out / CV_YAML).is_file():
        names = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
        others = [name for name in names if name not in (LOGS, RANKS)]
        if others:
            raise ValueError(f"{out}: is not empty (it holds {first_few(others)}); choose another --out")


def _settle(config: RunConfig, out: Path) -> None:
    """Write the settings of all folds into cv.yaml, or compare them with existing ones. Raises ValueError."""
    config, path = at_fold(config, None), out / CV_YAML
    temporary = out / f".{CV_YAML}.{token_hex(4)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(dump_run(config).encode())
        with suppress(FileExistsError):  # another process has begun another fold
            os.link(temporary, path)
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    finally:
        temporary.unlink(missing_ok=True)
    changed = changed_settings(flat(load_run(path)), flat(config)).values()
    if changed:
        remedy = "leave the change out, or choose another --out"
        raise ValueError("\n  ".join([f"{path}: all folds have the same settings; {remedy}", *changed]))
