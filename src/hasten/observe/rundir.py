"""The run directory: its files' names, and writes that an interruption cannot spoil."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hasten.files import make_writable, replacing

RUN_YAML = "run.yaml"
PLAN_JSON = "plan.json"
ENV_JSON = "env.json"
WEIGHTS_JSON = "weights.json"
METRICS_JSONL = "metrics.jsonl"
SUMMARY_JSON = "summary.json"
CHECKPOINTS = "checkpoints"
BEST_PT = "best.pt"
"""Weights with the best validation, in CHECKPOINTS."""
NETWORK_PY = "network.py"
"""Source code of a user's network, in CHECKPOINTS next to the weights."""
REPORT_HTML = "report.html"
LOGS = "logs"
RANKS = "ranks"
LOCK = ".lock"
"""The file that names the process of the run; take-overs of it have names that begin so."""
_OF_LAUNCHER = {LOGS, RANKS}
"""Folders that a launcher fills before the run begins: a directory with only these counts as unused."""
_OF_START = (f".{RUN_YAML}", RUN_YAML, PLAN_JSON, ENV_JSON, WEIGHTS_JSON, f"{CHECKPOINTS}/{NETWORK_PY}")
"""Files that a run writes before its first step."""


def check_run_dir(path: Path, *, resume: bool) -> None:
    """Raise ValueError if `path` is a file, or holds no run to resume."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file; choose another --out")
    if resume and not (path / RUN_YAML).is_file():
        raise ValueError(f"{path}: holds no run to resume ({RUN_YAML} is missing); leave out --resume to start one")


def create_run_dir(path: Path, *, resume: bool) -> Path:
    """Make the run directory and its checkpoints/ ready for writing, free of what a killed process left half-written.

    Returns `path`. Raises:
        ValueError: a new run's directory is not empty; a resumed one's holds no run; it cannot be written to.
    """
    check_run_dir(path, resume=resume)
    try:
        if resume:
            for leftover in (path / CHECKPOINTS).glob(".*.pt.*"):
                leftover.unlink(missing_ok=True)
        elif path.is_dir():
            names = {entry.name for entry in path.iterdir() if not entry.name.startswith(LOCK)} - _OF_LAUNCHER
            if not names - {CHECKPOINTS, f".{RUN_YAML}"}:
                undo_start(path)
                names = {CHECKPOINTS} if (path / CHECKPOINTS).exists() else set()
            if names:
                raise ValueError(f"{path}: is not empty; add --resume to continue its run, or choose another --out")
        make_writable(path / CHECKPOINTS)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written to ({error.strerror}); choose another --out") from None
    return path


def undo_start(path: Path) -> None:
    """Remove what a run wrote before its first step, so that the same command can be given again."""
    for name in _OF_START:
        (path / name).unlink(missing_ok=True)
    with suppress(OSError):
        (path / CHECKPOINTS).rmdir()


def write_json(path: Path, obj: Any) -> None:
    """Write JSON so that a reader, or a crash, sees the old file or the new one and never a part. NaN becomes null."""
    write_text(path, json_text(obj))


def json_text(obj: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(_plain(obj), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_jsonl(path: Path, records: list[Any]) -> None:
    """Write a whole file of records, as atomically as `write_json`."""
    write_text(path, "".join(map(_json_line, records)))


def _json_line(record: Any) -> str:
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a whole file as atomically as `write_json`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # bytes of a file name that are no UTF-8, as JSON reads


def append_jsonl(path: Path, record: Any) -> None:
    """Add one record as a line of JSON; what an interrupted write left at the end is removed first."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(_json_line(record).encode("utf-8", "backslashreplace"))


def read_jsonl(path: Path) -> list[Any]:
    """Every record; none if there is no file. A last line that was cut short is left out.

    Raises:
        ValueError: an earlier line is not JSON, so the file was damaged by something else.
    """
    if not os.path.lexists(path):  # a link that leads nowhere is an error
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise ValueError(f"{path}:{number}: not a line of JSON; correct or delete that line")
    return records


def _plain(obj: Any) -> Any:
    """JSON types of dataclasses, paths, tuples and numpy or torch scalars; NaN and infinity become None."""
    if obj is None or isinstance(obj, (str, bool, int)):
        return obj
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, dict):
        return {str(key): _plain(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple, set, frozenset)):
        return [_plain(value) for value in obj]
    if isinstance(obj, Path):
        return str(obj)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: _plain(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if hasattr(obj, "tolist"):  # numpy and torch, without importing either
        return _plain(obj.tolist())
    raise TypeError(f"{type(obj).__name__} has no form in JSON: {obj!r}")


def empty_folder(out: Path, option: str = "--out") -> Path:
    """Return `out` if it is missing or empty. Raises ValueError for a file, or a folder that isn't empty."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{option} {out}: is a file; choose another {option}")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{option} {out}: is not empty; choose another {option}")
    return out


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Create the folder `out` for the block to write into. Raises ValueError if it can't be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror or error}); name another folder") from None
