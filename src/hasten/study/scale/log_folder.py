"""Every log of a scaling study's folder, one for each strategy, count of workers and seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hasten.study.scale.csv_logs import PATTERN, parse_name, read_csv
from hasten.study.scale.log import Log
from hasten.study.scale.run_logs import RUNS_JSON, entry_from_files, is_run, read_run_log, study_entries


@dataclass(frozen=True, kw_only=True, slots=True)
class Logs:
    """The logs in a folder."""

    logs: tuple[Log, ...]
    """Logs, sorted by strategy, workers and seed."""
    notes: tuple[str, ...]
    """What was ignored or left out, and why, one sentence each."""


def read_logs(folder: Path) -> Logs:
    """The logs in `folder`: its CSV files, and its runs as listed in scale.json, else as described by their own files.

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
        entries = study_entries(folder)
    else:
        entries = [entry_from_files(place) for place in sorted(folder.iterdir()) if place.is_dir() and is_run(place)]
    for entry in entries:
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
    return Logs(logs=tuple(log for _, log in sorted(by_arm.items())), notes=tuple(notes))
