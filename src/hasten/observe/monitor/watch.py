"""The state of a run, read only from the files in its directory, and drawn for a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from hasten.config.yaml_file import load_yaml
from hasten.files import printable
from hasten.observe.folds import refuse_cross_validation
from hasten.observe.monitor.alerts import alerts_of_ranks, sentences
from hasten.observe.monitor.recording import (
    MONITOR_JSONL,
    RECENT_BYTES,
    MonitorRecording,
    Sample,
    read_records,
    recordings,
)
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import CHECKPOINTS, ENV_JSON, LOGS, METRICS_JSONL, PLAN_JSON, RUN_YAML, SUMMARY_JSON
from hasten.observe.values import duration, integer, mapping, number

SILENT_S = 10.0
"""Seconds without new records after which a run with a monitor counts as silent."""
SILENT_METRICS_S = 120.0
"""Seconds without new records for a run with only metrics.jsonl, where a line may cover many steps."""
_MARKS = {RUN_YAML, METRICS_JSONL, SUMMARY_JSON, PLAN_JSON, ENV_JSON, MONITOR_JSONL, CHECKPOINTS}
_AFTER_SUMMARY_S = 5.0
"""Seconds after summary.json in which the same process may still write."""
_STATES = {
    "waiting": ("nothing written yet", "cyan"),
    "running": ("running", "green"),
    "silent": ("silent", "red"),
    "finished": ("finished", "green"),
    "target_reached": ("target reached", "green"),
    "time_up": ("time is up", "yellow"),
    "interrupted": ("interrupted", "yellow"),
}


@dataclass(frozen=True, slots=True)
class View:
    """A run at one moment."""

    state: str
    """waiting, running, silent, or the status in summary.json."""
    frame: RenderableType
    """Everything that is known, most important first; what is not known is left out."""

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running", "silent")


def view_of(folder: Path, *, now: Callable[[], float] = time.time) -> View:
    """The present state of the run in `folder`; an empty folder is a run that has not begun to write.

    Raises ValueError if the folder does not exist or holds something that is no run.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder}: {what}; give the folder that a training run writes, its --out")
    refuse_cross_validation(folder)
    names = {path.name for path in folder.iterdir()} - {LOGS}  # which a job has before it begins
    if any(not name.startswith(".") for name in names) and not names & _MARKS:
        raise ValueError(f"{folder}: holds no run ({RUN_YAML} is missing); give the --out of a training run")
    recorded = recordings(folder, RECENT_BYTES)
    lines, _ = read_records(folder / METRICS_JSONL)
    summary, config = _read(folder / SUMMARY_JSON, json.loads), _read(folder / RUN_YAML, load_yaml)
    state, silent_s = _state(folder, summary, recorded, now())
    seen = [each for each in recorded if each.samples]
    # The last sample, or the one of the last three that has a pace.
    ranks = {each.rank: next((one for one in each.samples[:-4:-1] if one.step_s), each.samples[-1]) for each in seen}
    settings = mapping(config.get("train"))
    last: dict[str, Any] = next((line for line in reversed(lines) if line.get("kind") == "train"), {})
    whole = summary if state == summary.get("status") else {}  # of a run that is over; else the last line's
    speeds, total_s = {**last, **whole}, number(mapping(whole.get("seconds")).get("total"))
    steps = [step for step in (*(each.step for each in ranks.values()), integer(last.get("step"))) if step is not None]
    times = [value for value in (*(each.time for each in ranks.values()), number(last.get("time_s"))) if value]
    done = max(steps, default=integer(summary.get("steps")))
    metric = "auc" if config.get("kind") == "detection" else "iou" if settings.get("metric") == "iou" else "dice"
    scored = [(score, line.get("step")) for line in lines if (score := number(line.get(metric))) is not None]
    details = [_text(number(last.get("loss")), "loss {:.4f}")]
    if scored:
        best, step = max(scored, key=lambda pair: pair[0])
        target = number(mapping(summary.get("target")).get("value", settings.get("target")))
        about = f"best {best:.4f} at step {step}{_text(target, ', target {:.4f}')}"
        details.append(f"{SHOWN[metric]} {scored[-1][0]:.4f} ({about})")
    details.append(_text(number(speeds.get("samples_per_s")), "{:.1f} samples/s"))
    details.append(_text(number(speeds.get("wait_share")), "waiting for data {:.1%}"))
    words, color = _STATES.get(state, (state, "yellow"))
    if silent_s is not None:
        words += f", no news for {duration(silent_s)}"
    time_s = max(times, default=None) if total_s is None else total_s
    name = printable(str(summary.get("name") or folder.resolve().name))
    parts = [Text.assemble((name, "bold"), "  ", (words, color), "" if time_s is None else f"  {duration(time_s)}")]
    if state == "silent":
        resume = f"hasten train --resume --out {printable(quote(str(folder)))}"
        parts.append(Text(f"killed or stuck; if killed, resume with: {resume}"))
    total = done if state == "time_up" else integer(settings.get("steps"))
    if done is not None:
        parts.append(Text(f"step {done}" + (f"/{total} ({100 * done / total:.0f}%)" if total else "")))
    texts = ["  ".join(filter(None, details)), *(_sample(rank, each) for rank, each in ranks.items())]
    parts += [Text(text) for text in texts if text]
    alerts = alerts_of_ranks({each.rank: each.samples for each in recorded})
    parts += [Text(f"! {text}", style="yellow") for text in sentences(alerts)]
    notes = dict.fromkeys(note for each in recorded for note in each.notes)
    return View(state, Group(*parts, *(Text(printable(note), style="dim") for note in notes)))


def _state(
    folder: Path, summary: dict[str, Any], recorded: Sequence[MonitorRecording], now: float
) -> tuple[str, float | None]:
    """The state, and the seconds since anything was written if it should have been."""
    files = [folder / METRICS_JSONL, *(each.path for each in recorded)]
    news, ended = max(map(_modified_s, files)), _modified_s(folder / SUMMARY_JSON)
    if "status" in summary and news <= ended + _AFTER_SUMMARY_S:
        return str(summary["status"]), None
    if not news:
        return "waiting", None
    age = max(0.0, now - news)
    every = max(
        (each.samples[-1].time - each.samples[-2].time for each in recorded if len(each.samples) > 1), default=0
    )
    patience = max(SILENT_S, 5 * every) if any(each.is_open for each in recorded) else SILENT_METRICS_S
    return ("running", None) if age < patience else ("silent", age)


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The mapping in a file; empty where there is none."""
    try:
        return mapping(parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sample(rank: int, sample: Sample) -> str:
    """A rank's step, processor, memory and GPUs."""
    host = sample.host
    parts = [
        f"rank {rank}",
        _text(sample.step, "step {}"),
        _text(sample.step_s, "{:.0f} ms a step", 1000),
        _text(host.cpu, "CPU {:.0f}%") + _text(host.own_cores, " ({:.1f} cores by this process)"),
        _text(host.ram_used, "RAM {:.1f}", 1 / 1024) + _text(host.ram_total, " of {:.1f} GiB", 1 / 1024),
    ]
    for gpu in sample.gpus:
        memory = _text(gpu.used, " {:.1f}", 1 / 1024) + _text(gpu.total, "/{:.0f} GiB", 1 / 1024)
        heat = (
            _text(gpu.power_w, " {:.0f} W") + _text(gpu.sm_mhz, " {:.0f} MHz") + _text(gpu.temperature_c, " {:.0f} °C")
        )
        parts.append(f"GPU {gpu.index}{_text(gpu.util, ' {:.0f}%')}{memory}{heat}")
    return "  ".join(filter(None, parts))


def _text(value: float | None, form: str, scale: float = 1) -> str:
    """The value times `scale` in the form; nothing where it is not known."""
    return "" if value is None else form.format(value * scale)
