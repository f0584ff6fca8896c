"""Logs of Hasten's runs: run folders, and scale.json, which `hasten scale` and `hasten slurm` write."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hasten.config.yaml_file import load_yaml
from hasten.observe.rundir import METRICS_JSONL, RUN_YAML, SUMMARY_JSON
from hasten.observe.values import integer, mapping, number
from hasten.report.metrics import TrainRecord
from hasten.report.read import Run, read_run
from hasten.report.words import METRIC
from hasten.study.scale.log import Log

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

    world: int
    strategy: str
    seed: int
    folder: str
    mode: str = ""
    status: str = ""
    seconds: float | None = None
    """Wall time from the launcher's start to its end."""
    threads: int | None = None
    """Threads of each process."""
    others_cores: float = 0.0
    """Cores that other programs used meanwhile."""
    why: str = ""
    """Reason why a run failed."""


def study_entries(folder: Path) -> list[StudyEntry]:
    """The runs that the folder's scale.json names. Raises ValueError naming the file and the field."""
    path = folder / RUNS_JSON
    try:
        runs = mapping(json.loads(path.read_text(encoding="utf-8"))).get("runs")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: can't be read ({error}); write it anew with `hasten scale`") from None
    if not isinstance(runs, list):
        raise ValueError(f'{path}: has no list "runs"; `hasten scale` and `hasten slurm collect` write one')
    return [_entry(f"{path}: runs[{place}]", entry) for place, entry in enumerate(runs)]


def _entry(at: str, entry: Any) -> StudyEntry:
    fields = mapping(entry)
    world, strategy, name = integer(fields.get("world")), fields.get("strategy"), fields.get("folder")
    if world is None or world < 1:
        raise ValueError(f"{at}.world: must be 1 or more (given {fields.get('world')!r})")
    if not isinstance(strategy, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", strategy):
        raise ValueError(f"{at}.strategy: must be a strategy's name, such as ddp (given {strategy!r})")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{at}.folder: must name the run's folder (given {name!r})")
    return StudyEntry(
        world=world,
        strategy=strategy,
        seed=integer(fields.get("seed")) or 0,
        folder=name,
        mode=str(fields.get("mode") or ""),
        status=str(fields.get("status") or ""),
        seconds=number(fields.get("seconds")),
        threads=integer(fields.get("threads")),
        others_cores=number(fields.get("others_cores")) or 0.0,
        why=str(fields.get("why") or ""),
    )


def is_run(folder: Path) -> bool:
    return (folder / SUMMARY_JSON).is_file() or (folder / METRICS_JSONL).is_file()


def entry_from_files(folder: Path) -> StudyEntry:
    """An entry for a run that no scale.json lists, from its files. Raises ValueError where they can't be read."""
    world = mapping(_read(folder / SUMMARY_JSON, json.loads).get("world"))
    settings = _read(folder / RUN_YAML, load_yaml)
    size, strategy = integer(world.get("size")) or 1, str(world.get("strategy") or SINGLE)
    return StudyEntry(
        world=size,
        strategy=SINGLE if size == 1 else strategy,
        seed=integer(mapping(settings.get("train")).get("seed")) or 0,
        folder=folder.name,
    )


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return mapping(parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: can't be read ({error}); correct it or remove the run") from None


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
    settings = mapping(load_yaml(run.config)) if run.config else {}
    train = mapping(settings.get("train"))
    cases, batch = run.cases.get("train"), integer(mapping(settings.get("sample")).get("batch_size"))
    epochs: dict[int, float] = {}
    losses: list[tuple[float, float, float]] = []
    if cases and batch:
        epochs = _epochs(run.train, batch, cases)
        losses = [(record.step * batch / cases, record.time_s, record.loss) for record in run.train
                  if record.loss is not None]  # fmt: skip
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
        scores=tuple((record.time_s, record.score) for record in run.validations),
        rate=_rate(train, batch),
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


def _rate(train: dict[str, Any], batch: int | None) -> float | None:
    """The peak of the schedule, as the run scaled it to its batch."""
    rate, meant_for = number(train.get("learning_rate")), integer(train.get("learning_rate_batch"))
    return rate * batch / meant_for if rate is not None and batch and meant_for else rate


def _machine(run: Run, entry: StudyEntry, train: dict[str, Any]) -> dict[str, Any]:
    facts = run.environment
    torch, variables = mapping(facts.get("torch")), mapping(facts.get("variables"))
    devices = torch.get("devices")
    names = [str(mapping(device).get("name")) for device in devices] if isinstance(devices, list) else []
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
