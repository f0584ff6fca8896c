"""A run directory as one frozen record, whatever state the run left it in.

Only a directory that holds neither `summary.json` nor `metrics.jsonl` is refused. Any other gap (a run in progress,
a half-written last line, a damaged file) leaves its part empty and adds a sentence to `Run.notes`.
"""

from __future__ import annotations

import json
import statistics
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hasten.config.yaml_file import load_yaml
from hasten.evaluation.examples import EXAMPLES, Example
from hasten.observe.monitor.alerts import Alert, alerts_of_ranks
from hasten.observe.monitor.recording import Sample, read_records, recordings
from hasten.observe.values import integer, mapping, number, numbers

_FIELDS = tuple(field.name for field in fields(Example))
MAX_EXAMPLES = 6
"""More slices than this would make the page heavy without adding information."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The data of one run. Seconds count from the start of the process; None and empty mean unknown."""

    folder: Path
    name: str
    status: str
    """finished, target_reached, time_up, interrupted, failed or in_progress."""
    metric: str
    """mean_dice, mean_iou, or auc of slides: what the target, the best and the scores of the validations are."""
    target: float | None
    target_time_s: float | None
    best_score: float | None
    best_step: int | None
    steps: int | None
    total_s: float | None
    seconds: dict[str, float]
    """Part of the run to seconds, of all its processes; they do not overlap. The total is not among them."""
    samples_per_s: float | None
    wait_share: float | None
    """Share of the step time that waited for data, 0..1; known once a run has ended."""
    earlier_s: float
    """The part of `total_s` that went by before the run was resumed for the last time; 0 if it never was."""
    cases: dict[str, int]
    train: tuple[TrainRecord, ...]
    validations: tuple[ValidationRecord, ...]
    class_names: dict[int, str]
    """Foreground label value to class name, by value."""
    accelerators: dict[str, Any]
    """Values of summary.json; `decisions` are those of plan.json."""
    decisions: dict[str, Any]
    environment: dict[str, Any]
    world: dict[str, Any]
    """Size and strategy."""
    config: str
    settings: dict[str, Any]
    """The sections of `config`."""
    examples: tuple[Example, ...]
    machine: Machine | None
    """What the monitor recorded, if there was one."""
    notes: tuple[str, ...]
    """What is missing or damaged, one sentence each."""

    @property
    def scores(self) -> tuple[tuple[float, float], ...]:
        """(seconds, score) of each validation."""
        return tuple((record.time_s, record.score) for record in self.validations)


def read_run(folder: Path) -> Run:
    """Read the run directory `folder`.

    Raises ValueError if it holds neither summary.json nor metrics.jsonl, hence is no run directory.
    """
    if not (folder / "summary.json").is_file() and not (folder / "metrics.jsonl").is_file():
        remedy = "give the directory that a training run wrote"
        found = "holds neither summary.json nor metrics.jsonl" if folder.is_dir() else "no such folder"
        raise ValueError(f"{folder}: {found}; {remedy}")
    notes: list[str] = []
    summary = _read_json(folder / "summary.json", notes, why="the run is in progress, or ended without writing it")
    plan = _read_json(folder / "plan.json", notes)
    environment = _read_json(folder / "env.json", notes) or mapping(summary.get("environment"))
    config, settings = _read_config(folder / "run.yaml", notes)
    planned = mapping(settings.get("train"))
    doubts = summary.get("doubts")
    notes += [f"{str(doubt)[:1].upper()}{str(doubt)[1:]}." for doubt in doubts] if isinstance(doubts, list) else []
    best, seconds = mapping(summary.get("best")), numbers(summary.get("seconds"))
    # A run in progress has no summary, but its configuration knows the target.
    goal = {"metric": f"mean_{planned.get('metric') or 'dice'}", "value": planned.get("target")}
    target = mapping(summary.get("target")) or goal
    metric = str(target.get("metric") or best.get("metric") or "mean_dice")
    train, validations = read_metrics(folder / "metrics.jsonl", notes, metric.removeprefix("mean_"))
    best_score, best_step = number(best.get("value")), integer(best.get("step"))
    if best_score is None and validations:
        top = max(validations, key=lambda record: record.score)
        best_score, best_step = top.score, top.step
    records: tuple[TrainRecord | ValidationRecord, ...] = (*train, *validations)
    last_s = max((record.time_s for record in records), default=None)
    total_s = seconds.pop("total", None)
    last_step = max((record.step for record in records), default=None)
    steps, samples_per_s = integer(summary.get("steps")), number(summary.get("samples_per_s"))
    speeds = [record.samples_per_s for record in train if record.samples_per_s is not None]
    return Run(
        folder=folder,
        name=str(summary.get("name") or folder.resolve().name),
        status=str(summary.get("status") or ("in_progress" if not (folder / "summary.json").exists() else "unknown")),
        metric=metric,
        target=number(target.get("value")),
        target_time_s=number(target.get("time_s")) if target.get("reached", True) else None,
        best_score=best_score,
        best_step=best_step,
        steps=last_step if steps is None else steps,
        total_s=last_s if total_s is None else total_s,
        seconds=seconds,
        samples_per_s=statistics.median(speeds) if samples_per_s is None and speeds else samples_per_s,
        wait_share=number(summary.get("wait_share")),
        earlier_s=number(summary.get("earlier_seconds")) or 0.0,
        cases={name: int(count) for name, count in numbers(summary.get("cases")).items()},
        train=train,
        validations=validations,
        class_names=_class_names(plan, validations),
        accelerators=mapping(summary.get("accelerators")),
        decisions=mapping(plan.get("decisions")),
        environment=environment,
        world=mapping(summary.get("world")),
        config=config,
        settings=settings,
        examples=_read_examples(folder / EXAMPLES, notes),
        machine=read_monitor(folder, notes),
        notes=tuple(notes),
    )


def _read_json(path: Path, notes: list[str], *, why: str = "") -> dict[str, Any]:
    if not path.is_file():
        notes.append(f"{path.name} is missing" + (f": {why}." if why else "."))
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({error}).")
        return {}


def _read_config(path: Path, notes: list[str]) -> tuple[str, dict[str, Any]]:
    """The text of the configuration, and its sections."""
    if not path.is_file():
        notes.append("run.yaml is missing.")
        return "", {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return text, mapping(load_yaml(text))
    except yaml.YAMLError:
        notes.append("run.yaml is not valid YAML; it is shown as it is.")
        return text, {}


def _read_examples(path: Path, notes: list[str]) -> tuple[Example, ...]:
    if not path.is_file():
        notes.append("examples.npz is missing: there are no example slices.")
        return ()
    examples: list[Example] = []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for index in range(min(MAX_EXAMPLES, sum(key.startswith("image_") for key in arrays.files))):
                fields = {name: arrays[f"{name}_{index}"] for name in _FIELDS if f"{name}_{index}" in arrays.files}
                image, label, prediction = (fields.pop(name) for name in ("image", "label", "prediction"))
                if not image.shape[:2] == label.shape == prediction.shape:
                    raise ValueError(f"example {index} is not three (H, W) arrays of one shape")
                texts = {"name": f"case {index}", **{name: value.tolist() for name, value in fields.items()}}
                texts["dice"] = number(texts.get("dice"))
                maps = {"label": label.astype(np.uint8), "prediction": prediction.astype(np.uint8)}
                examples.append(Example(image=image.astype(np.float32), **maps, **texts))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        notes.append(f"examples.npz cannot be read ({error}).")
    return tuple(examples)


def _class_names(plan: dict[str, Any], validations: tuple[ValidationRecord, ...]) -> dict[int, str]:
    labels = mapping(mapping(plan.get("fingerprint")).get("labels"))
    named = {int(value): str(name) for value, name in labels.items() if str(value).isdecimal() and int(value) > 0}
    if named:
        return dict(sorted(named.items()))
    names = list(dict.fromkeys(name for record in validations for name in record.per_class))
    return dict(enumerate(names, start=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The recordings of all ranks; a rank without samples is left out, and there is at least one."""

    ranks: dict[int, tuple[Sample, ...]]
    """Samples of each rank in the order of time."""
    alerts: tuple[Alert, ...]
    remarks: tuple[str, ...]
    """The monitor's notes on itself, such as that there is no driver."""


def read_monitor(folder: Path, notes: list[str]) -> Machine | None:
    """The content of the run directory's monitor files; None if there are none. Unreadable lines become a note."""
    loaded = recordings(folder)
    for recording in loaded:
        if recording.damaged:
            lines = "1 line" if recording.damaged == 1 else f"{recording.damaged} lines"
            notes.append(f"{recording.path.name}: {lines} cannot be read.")
    ranks = {each.rank: each.samples for each in loaded if each.samples}
    if not ranks:
        return None
    remarks = dict.fromkeys(note for recording in loaded for note in recording.notes)
    return Machine(ranks=ranks, alerts=tuple(alerts_of_ranks(ranks)), remarks=tuple(remarks))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecord:
    step: int
    time_s: float
    loss: float | None
    samples_per_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationRecord:
    step: int
    time_s: float
    score: float
    """Mean of the run's metric."""
    per_class: dict[str, float]
    """Mean of each class, or region, over the cases that hold it."""


def read_metrics(
    path: Path, notes: list[str], metric: str
) -> tuple[tuple[TrainRecord, ...], tuple[ValidationRecord, ...]]:
    """All records, of one clock. metric: `dice` or `iou`, what is taken of a validation."""
    if not path.is_file():
        notes.append("metrics.jsonl is missing: there are no curves.")
    lines, damaged = read_records(path)
    if damaged:
        notes.append(f"metrics.jsonl: {damaged} of {damaged + len(lines)} lines cannot be read.")
    train: list[TrainRecord] = []
    validations: list[ValidationRecord] = []
    unusable = 0
    for line in lines:
        kind, step, time_s = line.get("kind"), integer(line.get("step")), number(line.get("time_s"))
        if kind == "resumed" and isinstance(line.get("changed"), dict):
            changed = ", ".join(f"{name} {json.dumps(values)}" for name, values in line["changed"].items())
            notes.append(f"From step {step} on, the run went on with other settings [before, after]: {changed}.")
        if kind not in ("train", "validation"):
            continue
        score = number(line.get(metric))
        if step is None or time_s is None or (kind == "validation" and score is None):
            unusable += 1
            continue
        if score is not None and kind == "validation":
            per_class = numbers(line.get(f"{metric}_per_class"))
            validations.append(ValidationRecord(step=step, time_s=time_s, score=score, per_class=per_class))
        else:
            values = {name: number(line.get(name)) for name in ("loss", "samples_per_s")}
            train.append(TrainRecord(step=step, time_s=time_s, **values))
    if unusable:
        notes.append(f"metrics.jsonl: {unusable} of {len(lines)} records lack a finite step, time_s or {metric}.")
    return tuple(train), tuple(validations)
