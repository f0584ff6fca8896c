"""Logs of a scaling study: runs of Hasten's with their scale.json, and CSV files of other trainings."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from hasten.config.patterns import first_few
from hasten.observe.rundir import METRICS_JSONL, SUMMARY_JSON
from hasten.observe.values import entries, integer, mapping, number
from hasten.report.read import Run, TrainRecord, read_run
from hasten.report.words import METRIC

Mode = Literal["weak", "strong"]
"""`weak`: each worker keeps its batch, so an epoch has 1/W of the steps. `strong`: the batch is dealt out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """One training on `world` workers (processes, with one GPU each if there are GPUs)."""

    strategy: str
    world: int
    seed: int
    source: str
    """The file or folder it was read from, relative to the study's."""
    epochs: Mapping[int, float]
    """0-based epoch to its seconds of training."""
    total_s: float | None
    """Wall time of the whole training; it includes the start-up in runs of Hasten."""
    losses: tuple[tuple[float, float, float], ...]
    """(epochs done, seconds since the start, loss) in order."""
    metric_name: str
    metric: float | None
    """Quality of the result, higher is better."""
    scores: tuple[tuple[float, float], ...] = ()
    """(seconds since the start, metric) of each validation."""
    rate: float | None = None
    """Highest learning rate."""
    cases: int | None = None
    """Samples of an epoch."""
    mode: str = ""
    """`weak`: the batch grows with the workers; `strong`: it stays the same; empty if unknown."""
    machine: Mapping[str, object] = field(default_factory=dict)
    """Cores, threads of a worker, device and measured choices of a run of Hasten; empty for another's."""

    def epoch_s(self, epoch: int | None) -> float | None:
        """Seconds of that 0-based epoch; None: the median of all but the first, which warms up."""
        if epoch is not None:
            return self.epochs.get(epoch)
        later = [seconds for index, seconds in self.epochs.items() if index > 0]
        return statistics.median(later or self.epochs.values()) if self.epochs else None

    def time_to(self, level: float) -> float | None:
        """Seconds since the start until a validation reached `level`; None if none did."""
        return next((seconds for seconds, metric in self.scores if metric >= level), None)


PATTERN = "log_<workers>.csv, log_<strategy>_<workers>.csv or log_<strategy>_<workers>_seed<n>.csv"
_NAME = re.compile(
    r"log_(?:(?P<strategy>[a-z][a-z0-9-]*(?:_[a-z][a-z0-9-]*)*)_)?(?P<world>\d{1,6})(?:_seed(?P<seed>\d{1,9}))?\.csv"
)
NATIVE = "native"
"""Torch's DistributedDataParallel, the strategy of logs without one in their name."""
_SHORT = {"hvd": "horovod"}
METRICS = {"iou": "IoU", "dice": "Dice"}
_INDEX = ("", "index", "epoch", "Unnamed: 0")
"""Names of a first column that numbers the epochs."""
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One epoch of a CSV file."""

    time_per_epoch: _Seconds
    loss: float
    training_time: _Seconds
    iou: float = math.nan
    dice: float = math.nan
    lr: float = math.nan


def parse_name(path: Path) -> tuple[str, int, int] | None:
    """Strategy, workers and seed from a file's name; None if it isn't the name of a log."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["world"]) < 1:
        return None
    strategy = match["strategy"] or NATIVE
    return _SHORT.get(strategy, strategy), int(match["world"]), int(match["seed"] or 0)


def read_csv(path: Path) -> tuple[Log, list[str]]:
    """The log in a CSV file whose name `parse_name` accepts, and remarks about it, a sentence each.

    A row for each epoch, with the columns time_per_epoch (seconds), loss, training_time (seconds in all), iou or dice;
    lr may be there, and others are ignored. The total and the metric are those of the last row.
    Raises ValueError naming the file, and the column and the line, for what isn't such a log.
    """
    name = parse_name(path)
    assert name is not None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            table, columns = list(reader), reader.fieldnames or ()
        uneven = [f"line {line}" for line, row in enumerate(table, 2) if None in row or None in row.values()]
        if uneven:
            raise ValueError(f"{path}: {first_few(uneven)}: has not one value for each column; correct or delete that")
        numbers = [row[columns[0]] for row in table] if columns and columns[0] in _INDEX else []
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{path}: its first column numbers an epoch twice; keep one of the rows")
        rows = TypeAdapter(list[_Row]).validate_python(table)
    except ValidationError as error:
        wrong = [f"line {int(each['loc'][0]) + 2}: {each['loc'][1]}: {each['msg']}" for each in error.errors()]
        raise ValueError(f"{path}: {first_few(wrong)}; correct or delete that") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: can't be read as CSV ({error}); correct or remove it") from None
    metric = next((column for column in METRICS if column in columns), None)
    if not rows or metric is None:
        raise ValueError(f"{path}: holds no epoch with an iou or a dice; take the file away or give the whole log")
    score = getattr(rows[-1], metric)
    clock = accumulate(row.time_per_epoch for row in rows)
    losses = [(number, seconds, row.loss) for number, (seconds, row) in enumerate(zip(clock, rows, strict=True), 1)]
    known = math.isfinite(score)
    return Log(
        strategy=name[0],
        world=name[1],
        seed=name[2],
        source=path.name,
        epochs={number: row.time_per_epoch for number, row in enumerate(rows)},
        total_s=rows[-1].training_time,
        losses=tuple(entry for entry in losses if math.isfinite(entry[2])),
        metric_name=METRICS[metric],
        metric=score if known else None,
        rate=max((row.lr for row in rows if math.isfinite(row.lr)), default=None),
    ), [] if known else [f"{path.name}: its {metric} is no finite number, so its quality isn't known."]


RUNS_JSON = "scale.json"
"""The list: {"runs": [{"world", "strategy", "seed", "mode", "folder", "status"}, ...]}, folders relative to it."""
SINGLE = "single"
"""The strategy of runs of one process."""
DONE = ("finished", "target_reached")
MEASURED = ("precision", "channels_last", "compile", "capture")
"""Fields of `train` that a run chooses by measuring unless they are set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyEntry:
    """One run in scale.json."""

    world: Annotated[int, Field(ge=1)]
    strategy: Annotated[str, Field(pattern="^[a-z][a-z0-9_-]*$")]
    seed: int = 0
    folder: Annotated[str, Field(min_length=1)]
    mode: str = ""
    status: str = ""
    seconds: float | None = None
    """Wall time from the launcher's start to its end."""
    threads: int | None = None
    """Threads of each process."""
    others_cores: float | None = None
    """Cores that other programs used meanwhile."""
    why: str = ""
    """Reason why a run failed."""


@dataclass(frozen=True, slots=True)
class _Study:
    runs: list[StudyEntry]


def study_entries(folder: Path) -> list[StudyEntry]:
    """The runs that the folder's scale.json names. Raises ValueError naming the file and the fields."""
    path = folder / RUNS_JSON
    try:
        return TypeAdapter(_Study).validate_json(path.read_bytes()).runs
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ValueError(f"{path}: {first_few(wrong)}; write it anew with `hasten scale`") from None
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error}); write it anew with `hasten scale`") from None


def is_run(folder: Path) -> bool:
    return (folder / SUMMARY_JSON).is_file() or (folder / METRICS_JSONL).is_file()


def entry_from_files(folder: Path) -> StudyEntry:
    """An entry for a run that no scale.json lists, from its files."""
    run = read_run(folder)
    size, strategy = integer(run.world.get("size")) or 1, str(run.world.get("strategy") or SINGLE)
    return StudyEntry(
        world=size,
        strategy=SINGLE if size == 1 else strategy,
        seed=integer(mapping(run.settings.get("train")).get("seed")) or 0,
        folder=folder.name,
    )


def read_run_log(folder: Path, entry: StudyEntry) -> tuple[Log | None, list[str]]:
    """The log of a run below `folder`, and remarks about it; no log if the run isn't complete."""
    place = folder / entry.folder
    at = entry.folder
    if entry.status and entry.status not in DONE:
        return None, [f"{at}: {entry.status}{f' ({entry.why})' if entry.why else ''}, so it is left out."]
    if not is_run(place):
        raise ValueError(f"{folder / RUNS_JSON}: names {at}, which holds no run; take it out of the list or run it")
    run = read_run(place)
    if run.status not in DONE:
        return None, [f"{at}: {run.status.replace('_', ' ')}, so it is left out."]
    notes = [f"{at}: was resumed; its seconds are those of all its processes."] if run.earlier_s else []
    train = mapping(run.settings.get("train"))
    cases, batch = run.cases.get("train"), integer(mapping(run.settings.get("sample")).get("batch_size"))
    rate, meant_for = number(train.get("learning_rate")), integer(train.get("learning_rate_batch"))
    if rate is not None and batch and meant_for:
        rate *= batch / meant_for  # the peak of the schedule, as the run scaled it to its batch
    epochs = _epochs(run.train, batch, cases) if cases and batch else {}
    records = [(record.step, record.time_s, record.loss) for record in run.train if record.loss is not None]
    losses = [(step * batch / cases, time_s, loss) for step, time_s, loss in records] if cases and batch else []
    if not epochs:
        notes.append(f"{at}: its {METRICS_JSONL} has no pace, so its epochs have no time.")
    return Log(
        strategy=entry.strategy,
        world=entry.world,
        seed=entry.seed,
        source=at,
        mode=entry.mode,
        cases=cases,
        epochs=epochs,
        total_s=entry.seconds if entry.seconds is not None else run.total_s,
        losses=tuple(losses),
        metric_name=METRIC.get(run.metric, run.metric),
        metric=run.best_score,
        scores=run.scores,
        rate=rate,
        machine=_machine(run, entry, train),
    ), notes


def _epochs(records: Sequence[TrainRecord], batch: int, cases: int) -> dict[int, float]:
    """Seconds of training of each whole epoch, from the pace between log lines; validations are excluded.

    A run of less than one epoch has its typical pace as epoch 0.
    """
    samples_done, clock, paces = [0.0], [0.0], []
    for record in records:
        samples = record.step * batch - samples_done[-1]
        if record.samples_per_s and samples > 0:
            paces.append(record.samples_per_s)
            samples_done.append(samples_done[-1] + samples)
            clock.append(clock[-1] + samples / record.samples_per_s)
    if not paces:
        return {}
    whole = int(samples_done[-1] // cases)
    if whole == 0:
        return {0: cases / statistics.median(paces[1:] or paces)}
    ends = np.interp(np.arange(whole + 1) * cases, samples_done, clock)
    return dict(enumerate(np.diff(ends).tolist()))


def _machine(run: Run, entry: StudyEntry, train: dict[str, Any]) -> dict[str, Any]:
    facts = run.environment
    torch, variables = mapping(facts.get("torch")), mapping(facts.get("variables"))
    names = [str(mapping(device).get("name")) for device in entries(torch.get("devices"))]
    threads = entry.threads if entry.threads is not None else variables.get("OMP_NUM_THREADS")
    on_gpu = bool(names) and not str(train.get("device")).startswith("cpu")
    return {
        "device": names[0] if on_gpu else str(facts.get("cpu") or ""),
        "gpus": len(names) if on_gpu else 0,
        "cores": integer(facts.get("cores_usable")),
        "threads": str(threads) if threads is not None else "",
        "others_cores": entry.others_cores,
        **{name: train.get(name) for name in MEASURED},
    }


def read_logs(folder: Path) -> tuple[list[Log], list[str]]:
    """The logs in `folder`: its CSV files, and its runs as listed in scale.json, else as described by their own files.

    Sorted by strategy, workers and seed; and what was ignored or left out, and why, one sentence each.
    Raises ValueError naming the file and what is wrong: no folder, no log in it, a log that can't be used, two logs of
    one strategy, count of workers and seed, or logs with different metrics.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name the one that holds the logs of a scaling study")
    if is_run(folder):
        raise ValueError(f"{folder}: is a single run; name the folder that holds the runs of a scaling study")
    logs: list[Log] = []
    notes: list[str] = []
    for path in sorted(folder.glob("log_*.csv")):
        if parse_name(path) is None:
            notes.append(f"{path.name}: ignored, as its name doesn't state the workers; it must read {PATTERN}.")
            continue
        log, remarks = read_csv(path)
        logs.append(log)
        notes += remarks
    if (folder / RUNS_JSON).is_file():
        runs = study_entries(folder)
    else:
        runs = [entry_from_files(place) for place in sorted(folder.iterdir()) if place.is_dir() and is_run(place)]
    for entry in runs:
        run_log, remarks = read_run_log(folder, entry)
        logs += [run_log] if run_log is not None else []
        notes += remarks
    if not logs:
        why = f" ({' '.join(notes)})" if notes else ""
        raise ValueError(
            f"{folder}: holds no log of a scaling study{why}; it needs {PATTERN}, or folders of complete runs as "
            "`hasten scale` writes them"
        )
    by_arm: dict[tuple[str, int, int], Log] = {}
    for log in logs:
        other = by_arm.setdefault((log.strategy, log.world, log.seed), log)
        if other is not log:
            raise ValueError(
                f"{folder}: {other.source} and {log.source} are both of {log.strategy} with {log.world} workers and "
                f"seed {log.seed}; take one away, or name their seeds ({PATTERN})"
            )
    by_metric = {log.metric_name: log.source for log in logs}
    if len(by_metric) > 1:
        metrics = " and ".join(f"{metric} in {source}" for metric, source in by_metric.items())
        raise ValueError(f"{folder}: the logs have different metrics ({metrics}), which can't be compared; part them")
    return [log for _, log in sorted(by_arm.items())], notes
