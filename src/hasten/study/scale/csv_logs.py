"""Logs of other trainings: a CSV file per run, a row per epoch, the number of workers in the file's name."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

from hasten.study.scale.log import Log

PATTERN = "log_<workers>.csv, log_<strategy>_<workers>.csv or log_<strategy>_<workers>_seed<n>.csv"
_NAME = re.compile(
    r"log_(?:(?P<strategy>[a-z][a-z0-9-]*(?:_[a-z][a-z0-9-]*)*)_)?(?P<world>\d{1,6})(?:_seed(?P<seed>\d{1,9}))?\.csv"
)
NATIVE = "native"
"""Torch's DistributedDataParallel, the strategy of logs without one in their name."""
_SHORT = {"hvd": "horovod"}
METRICS = {"iou": "IoU", "dice": "Dice"}
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
    metric = next((column for column in METRICS if column in columns), "iou")
    missing = [column for column in (*_NEEDED, metric) if column not in columns]
    if missing:
        there = ", ".join(column or "(no name)" for column in columns)
        raise ValueError(f"{path}: has no column {', '.join(missing)} (it has {there}); add it, or take the file away")
    index = columns[0] if columns[0] in _INDEX else None
    unknown = [column or "(no name)" for column in columns if column not in _KNOWN and column != index]
    notes = [f"{path.name}: unknown columns are ignored: {', '.join(unknown)}."] if unknown else []
    epochs: dict[int, float] = {}
    losses = []
    clock = 0.0
    for number, (line, row) in enumerate(rows):
        epoch = number if index is None else int(_number(line, row, index, least=0))
        if epoch in epochs:
            raise ValueError(f"{line}: epoch {epoch} is there twice; keep one of the rows")
        epochs[epoch] = _number(line, row, "time_per_epoch", least=1e-9)
        clock += epochs[epoch]
        losses.append((epoch + 1.0, clock, _number(line, row, "loss")))
    line, last = rows[-1]
    score = _number(line, last, metric)
    if not math.isfinite(score):
        notes.append(f"{path.name}: its {metric} is no finite number, so its quality isn't known.")
    return Log(
        strategy=name[0],
        world=name[1],
        seed=name[2],
        source=path.name,
        epochs=epochs,
        total_s=_number(line, last, "training_time", least=1e-9),
        losses=tuple(entry for entry in losses if math.isfinite(entry[2])),
        metric_name=METRICS[metric],
        metric=score if math.isfinite(score) else None,
        rate=max(_number(line, row, "lr") for line, row in rows) if "lr" in columns else None,
    ), notes


def _table(path: Path) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """The names of the columns, and the file and line of each row with its values by column; at least one row."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            columns = [column.strip() for column in next(reader, [])]
            rows = [(f"{path}:{reader.line_num}", cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: can't be read as CSV ({error}); correct or remove it") from None
    if not rows:
        raise ValueError(f"{path}: holds no epoch; take the file away or give the whole log")
    for line, cells in rows:
        if len(cells) != len(columns):
            raise ValueError(f"{line}: has {len(cells)} values for {len(columns)} columns; correct or delete that line")
    return columns, [(line, dict(zip(columns, cells, strict=True))) for line, cells in rows]


def _number(line: str, row: dict[str, str], column: str, *, least: float | None = None) -> float:
    """The number in a column; `least`: it must be finite, and at least that."""
    value: float | None
    try:
        value = float(row[column])
    except ValueError:
        value = None
    if value is None or (least is not None and not least <= value < math.inf):
        kind = "a number" if least is None else f"a number of at least {least:g}"
        name = column or "the first column"
        raise ValueError(f"{line}: {name} is {row[column]!r}, but must be {kind}; correct or delete that line")
    return value
