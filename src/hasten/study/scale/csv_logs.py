"""Logs of other trainings: a CSV file per run, a row per epoch, the number of workers in the file's name."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

from hasten.study.scale.log import Log

PATTERN = "log_<workers>.csv, log_<strategy>_<workers>.csv or log_<strategy>_<workers>_seed<n>.csv"
_NAME = re.compile(r"log_(?:(?P<strategy>[a-z][a-z0-9-]*(?:_[a-z][a-z0-9-]*)*)_)?(?P<world>\d{1,6})(?:_seed(?P<seed>\d{1,9}))?\.csv")  # fmt: skip  # noqa: E501
NATIVE = "native"
"""Torch's DistributedDataParallel, the strategy of logs without one in their name."""
_SHORT = {"hvd": "horovod"}
METRICS = ("iou", "dice")
_NEEDED = ("time_per_epoch", "loss", "training_time")
_KNOWN = (*_NEEDED, "lr", "test_time", *METRICS)
_INDEX = ("", "index", "epoch", "Unnamed: 0")
"""Names of a first column that numbers the epochs."""


def parse_name(path: Path) -> tuple[str, int, int] | None:
    """Strategy, workers and seed from a file's name; None if it isn't the name of a log."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["world"]) < 1:
        return None
    strategy = match["strategy"] or NATIVE
    return _SHORT.get(strategy, strategy), int(match["world"]), int(match["seed"] or 0)


def read_csv(path: Path) -> tuple[Log, list[str]]:
    """The log in a CSV file whose name `parse_name` accepts, and remarks about it, a sentence each.

    Columns: time_per_epoch (seconds), loss, training_time (seconds in all), iou or dice; lr and test_time may be there.
    The last three and the metric are the same in every row; the last row's are taken.
    Raises ValueError naming the file, and the column or the line, for what isn't such a log.
    """
    name = parse_name(path)
    assert name is not None
    columns, rows = _table(path)
    metric = next((column for column in METRICS if column in columns), METRICS[0])
    missing = [column for column in (*_NEEDED, metric) if column not in columns]
    if missing:
        there = ", ".join(column or "(no name)" for column in columns)
        raise ValueError(f"{path}: has no column {', '.join(missing)} (it has {there}); add it, or take the file away")
    first = columns[0]
    counted = first in _INDEX
    unknown = [column or "(no name)" for place, column in enumerate(columns)
               if column not in _KNOWN and not (place == 0 and counted)]  # fmt: skip
    notes = [f"{path.name}: {_columns(unknown)} not known and ignored."] if unknown else []
    epochs: dict[int, float] = {}
    losses = []
    clock = 0.0
    for number, (line, row) in enumerate(rows):
        epoch = _count(path, line, first, row[first]) if counted else number
        if epoch in epochs:
            raise ValueError(f"{path}:{line}: epoch {epoch} is there twice; keep one of the rows")
        epochs[epoch] = _seconds(path, line, "time_per_epoch", row["time_per_epoch"])
        clock += epochs[epoch]
        loss = _number(path, line, "loss", row["loss"])
        if math.isfinite(loss):
            losses.append((epoch + 1.0, clock, loss))
    line, last = rows[-1]
    score = _number(path, line, metric, last[metric])
    if not math.isfinite(score):
        notes.append(f"{path.name}: its {metric} is no finite number, so its quality isn't known.")
    rates = [_number(path, line, "lr", row["lr"]) for line, row in rows] if "lr" in columns else []
    return Log(
        strategy=name[0],
        world=name[1],
        seed=name[2],
        source=path.name,
        epochs=epochs,
        total_s=_seconds(path, line, "training_time", last["training_time"]),
        losses=tuple(losses),
        metric_name="IoU" if metric == "iou" else "Dice",
        metric=score if math.isfinite(score) else None,
        rate=max(rates, default=None),
    ), notes


def _table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Column names, and each row with its 1-based line. At least one row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            columns = [column.strip() for column in next(reader, [])]
            rows = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: can't be read as CSV ({error}); correct or remove it") from None
    twice = sorted({column or "(no name)" for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"{path}: has the column {', '.join(twice)} more than once; keep one")
    for line, cells in rows:
        if len(cells) != len(columns):
            raise ValueError(
                f"{path}:{line}: has {len(cells)} values for {len(columns)} columns; correct or delete that line"
            )
    if not rows:
        raise ValueError(f"{path}: holds no epoch; take the file away or give the whole log")
    return columns, [(line, dict(zip(columns, cells, strict=True))) for line, cells in rows]


def _columns(names: list[str]) -> str:
    return f"{'columns' if len(names) > 1 else 'column'} {', '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{path}:{line}: {column} is {text!r}, which is no number; correct or delete that line"
        ) from None


def _seconds(path: Path, line: int, column: str, text: str) -> float:
    seconds = _number(path, line, column, text)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{path}:{line}: {column} is {text}, but must be seconds above 0; correct or delete that line")
    return seconds


def _count(path: Path, line: int, column: str, text: str) -> int:
    number = _number(path, line, column or "the first column", text)
    if not (number >= 0 and number == math.floor(number) and number < math.inf):
        raise ValueError(f"{path}:{line}: {column or 'the first column'} is {text}, but must be an epoch's number")
    return int(number)
