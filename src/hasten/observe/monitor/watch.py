"""The state of a run, read only from the files in its directory, and drawn for a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hasten.config.yaml_file import load_yaml
from hasten.files import printable
from hasten.observe.monitor.alerts import Alert, alerts_of_ranks, sentences
from hasten.observe.monitor.recording import MONITOR_JSONL, Follower, MonitorRecording, recordings
from hasten.observe.monitor.sample import Gpu, Host, Sample
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import CHECKPOINTS, ENV_JSON, METRICS_JSONL, PLAN_JSON, RUN_YAML, SUMMARY_JSON
from hasten.observe.values import duration, integer, mapping, number

SILENT_S = 10.0
"""Seconds without new records after which a run with a monitor counts as silent."""
SILENT_METRICS_S = 120.0
"""Seconds without new records for a run with only metrics.jsonl, where a line may cover many steps."""
ENDING_S = 30.0
"""Seconds that a run whose monitor has stopped may take to write its summary."""
_MARKS = (RUN_YAML, METRICS_JSONL, SUMMARY_JSON, PLAN_JSON, ENV_JSON, MONITOR_JSONL, CHECKPOINTS)
_AFTER_SUMMARY_S = 5.0
"""Seconds after summary.json in which the same process may still write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The state of a run at one moment; None is unknown."""

    name: str
    folder: Path
    state: str
    """waiting, running, silent, ended, or the status in summary.json."""
    is_over: bool
    silent_s: float | None
    """Seconds since anything was written, if the run should have written."""
    time_s: float | None
    steps: int | None
    """Done, of `total`, which is an estimate where a time limit ends the run."""
    total: int | None
    target: float | None
    loss: float | None
    samples_per_s: float | None
    wait_share: float | None
    metric: str
    """Name of the run's metric."""
    score: float | None
    """Mean of the metric in the last validation."""
    best: float | None
    best_step: int | None
    left_s: float | None
    """Seconds to the last step at the present pace."""
    ranks: dict[int, Sample]
    """The last sample of each rank, with the last known time of a step."""
    alerts: tuple[Alert, ...]
    notes: tuple[str, ...]


class Watch:
    """Follows the run in `folder`.

    Raises ValueError if the folder does not exist or holds something that is no run. An empty folder is a run that has
    not begun to write.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise ValueError(f"{folder}: {what}; give the folder that a training run writes, its --out")
        self.folder, self._now = folder, now
        self._require_run()
        self._metrics = Follower(folder / METRICS_JSONL)
        self._recordings: dict[int, MonitorRecording] = {}
        self._train: dict[str, Any] = {}
        self._validations: list[dict[str, Any]] = []
        self._lines: list[tuple[float, float]] = []
        """Step and seconds of lines of the training."""

    def poll(self) -> View:
        """Read what is new. Raises ValueError if the folder has become something else."""
        self._require_run()
        for record in self._metrics.poll():
            self._take(record)
        for rank, path in recordings(self.folder).items():
            self._recordings.setdefault(rank, MonitorRecording(path, rank)).poll()
        summary, config = self._read(SUMMARY_JSON, json.loads), self._read(RUN_YAML, load_yaml)
        state, silent_s = self._state(summary)
        samples = {rank: sample for rank, recording in self._recordings.items() if (sample := _latest(recording))}
        train = mapping(config.get("train"))
        steps = self._steps(summary, samples)
        total, left_s = self._end(steps, integer(train.get("steps")), number(train.get("max_seconds")))
        target = mapping(summary.get("target")).get("value", train.get("target"))
        metric = "auc" if config.get("kind") == "detection" else "iou" if train.get("metric") == "iou" else "dice"
        scored = [(score, line) for line in self._validations if (score := number(line.get(metric))) is not None]
        unscored: tuple[float | None, dict[str, Any]] = (None, {})
        best = max(scored, key=lambda pair: pair[0], default=unscored)
        whole = summary if state == summary.get("status") else {}  # of a run that is over; else the last line's
        total_s, speeds = number(mapping(whole.get("seconds")).get("total")), {**self._train, **whole}
        return View(
            name=str(summary.get("name") or self.folder.resolve().name),
            folder=self.folder,
            state=state,
            is_over=state not in ("waiting", "running", "silent"),
            silent_s=silent_s,
            time_s=self._time(samples) if total_s is None else total_s,
            steps=steps,
            total=steps if state == "time_up" else total,
            target=number(target),
            loss=number(self._train.get("loss")),
            samples_per_s=number(speeds.get("samples_per_s")),
            wait_share=number(speeds.get("wait_share")),
            metric=SHOWN[metric],
            score=scored[-1][0] if scored else None,
            best=best[0],
            best_step=integer(best[1].get("step")),
            left_s=left_s if state == "running" else None,
            ranks=samples,
            alerts=tuple(self._alerts()),
            notes=tuple(self._notes()),
        )

    def _require_run(self) -> None:
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if any(not name.startswith(".") for name in names) and not names & set(_MARKS):
            raise ValueError(f"{self.folder}: holds no run ({RUN_YAML} is missing); give the --out of a training run")

    def _take(self, record: dict[str, Any]) -> None:
        step, seconds = number(record.get("step")), number(record.get("time_s"))
        if step is None or seconds is None:
            return
        if record.get("kind") == "train":
            # A resumed run, or one that was restarted in the same file, continues from its checkpoint.
            while self._lines and (self._lines[-1][0] >= step or self._lines[-1][1] >= seconds):
                self._lines.pop()
            self._lines.append((step, seconds))
            self._train = record
        elif record.get("kind") == "validation" and any(number(record.get(each)) is not None for each in SHOWN):
            while self._validations and self._validations[-1]["step"] >= step:
                self._validations.pop()
            self._validations.append(record)

    def _state(self, summary: dict[str, Any]) -> tuple[str, float | None]:
        files = [self.folder / METRICS_JSONL, *(recording.path for recording in self._recordings.values())]
        news, ended = max(map(_modified_s, files), default=0.0), _modified_s(self.folder / SUMMARY_JSON)
        if "status" in summary and news <= ended + _AFTER_SUMMARY_S:
            return str(summary["status"]), None
        is_open = [recording.is_open for recording in self._recordings.values()]
        if not news:
            return "waiting", None
        age = max(0.0, self._now() - news)
        every = max((recording.every for recording in self._recordings.values()), default=0.0)
        patience = max(SILENT_S, 5 * every) if any(is_open) else ENDING_S if is_open else SILENT_METRICS_S
        if age < patience:
            return "running", None
        return ("ended", age) if is_open and not any(is_open) else ("silent", age)

    def _alerts(self) -> list[Alert]:
        ranks = {rank: recording.samples for rank, recording in self._recordings.items()}
        return alerts_of_ranks(ranks)

    def _notes(self) -> list[str]:
        return list(dict.fromkeys(note for recording in self._recordings.values() for note in recording.notes))

    def _steps(self, summary: dict[str, Any], samples: dict[int, Sample]) -> int | None:
        recorded = [sample.step for sample in samples.values() if sample.step is not None]
        logged = [int(self._lines[-1][0])] if self._lines else []
        return max([*recorded, *logged], default=integer(summary.get("steps")))

    def _time(self, samples: dict[int, Sample]) -> float | None:
        times = [sample.time for sample in samples.values()] + [seconds for _, seconds in self._lines[-1:]]
        return max(times, default=None)

    def _end(self, steps: int | None, total: int | None, limit_s: float | None) -> tuple[int | None, float | None]:
        """Steps of the run and seconds left, at the pace of the last half of the lines, but not beyond the limit."""
        lines = self._lines[len(self._lines) // 2 - 1 :] if len(self._lines) > 2 else self._lines
        if steps is None or total is None or len(lines) < 2 or steps >= total:
            return total, None
        (first, began), (last, now) = lines[0], lines[-1]
        step_s = max(1e-9, (now - began) / (last - first))
        left_s = (total - steps) * step_s
        if limit_s is not None and limit_s - now < left_s:
            left_s = max(0.0, limit_s - now)
            total = steps + int(left_s / step_s)
        return total, left_s

    def _read(self, name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
        try:
            return mapping(parse((self.folder / name).read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return {}


def _latest(recording: MonitorRecording) -> Sample | None:
    """The last sample, with the pace of the last one that had any."""
    samples = list(recording.samples)
    if not samples:
        return None
    return next((sample for sample in samples[:-4:-1] if sample.step_s is not None), samples[-1])


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


_STATES = {
    "waiting": ("nothing written yet", "cyan"),
    "running": ("running", "green"),
    "silent": ("silent", "red"),
    "ended": ("ended without a summary", "red"),
    "finished": ("finished", "green"),
    "target_reached": ("target reached", "green"),
    "time_up": ("time is up", "yellow"),
    "interrupted": ("interrupted", "yellow"),
}


def frame(view: View) -> RenderableType:
    """Everything that is known, most important first; what is not known is left out."""
    lines = ["".join(_progress(view))]
    lines += ["  ".join(part for part in parts if part) for parts in (_scores(view), _speeds(view))]
    parts: list[RenderableType] = [_title(view), *(Text(line) for line in lines if line)]
    if view.ranks:
        parts += [_ranks(view.ranks), Text(_host(view.ranks[min(view.ranks)].host))]
    parts += [Text(f"! {text}", style="yellow") for text in sentences(view.alerts)]
    parts += [Text(printable(note), style="dim") for note in view.notes]
    return Group(*parts)


def _title(view: View) -> Text:
    words, color = _STATES.get(view.state, (view.state, "yellow"))
    if view.silent_s is not None:
        words += f", no news for {duration(view.silent_s)}"
    title = Text.assemble((printable(view.name), "bold"), "  ", (words, color))
    title.append(_text(view.time_s, "  {}", duration))
    if view.state == "silent":
        folder = printable(quote(str(view.folder)))
        title.append(f"\nkilled or stuck; if killed, resume with: hasten train --resume --out {folder}")
    return title


def _progress(view: View) -> Iterator[str]:
    if view.steps is not None:
        yield f"step {view.steps}"
        yield f"/{view.total} ({100 * view.steps / view.total:.0f}%)" if view.total else ""
        yield _text(view.left_s, ", {} left at this pace", duration)


def _scores(view: View) -> Iterator[str]:
    yield _text(view.loss, "loss {:.4f}")
    if view.score is not None and view.best is not None:
        about = f"best {view.best:.4f}{_text(view.best_step, ' at step {}')}{_text(view.target, ', target {:.4f}')}"
        yield f"{view.metric} {view.score:.4f} ({about})"


def _speeds(view: View) -> Iterator[str]:
    yield _text(view.samples_per_s, "{:.1f} samples/s")
    yield _text(view.wait_share, "waiting for data {:.1%}")


def _ranks(ranks: dict[int, Sample]) -> Table:
    """One row for each rank and GPU; columns that nobody fills are left out."""
    rows: list[dict[str, str]] = []
    for rank, sample in ranks.items():
        first = {
            "rank": str(rank),
            "step": _text(sample.step, "{}"),
            "a step": _text(sample.step_s, "{:.0f} ms", lambda seconds: 1000 * seconds),
            "memory (RSS)": _text(sample.host.rss, "{:.2f} GiB", _gib),
        }
        gpus = [_gpu(gpu) for gpu in sample.gpus] or [{}]
        rows += [{**first, **gpus[0]}, *({"rank": str(rank), **gpu} for gpu in gpus[1:])]
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) for row in rows)]
    for name in names:
        table.add_column(name, justify="right", no_wrap=name != "throttled")
    for row in rows:
        table.add_row(*(row.get(name, "") for name in names))
    return table


def _gpu(gpu: Gpu) -> dict[str, str]:
    return {
        "GPU": str(gpu.index),
        "busy": _text(gpu.util, "{:.0f}%"),
        "GPU memory": _text(gpu.used, "{:.1f}", _gib) + _text(gpu.total, "/{:.0f} GiB", _gib),
        "power": _text(gpu.power_w, "{:.0f} W"),
        "clock": _text(gpu.sm_mhz, "{:.0f} MHz"),
        "heat": _text(gpu.temperature_c, "{:.0f} °C"),
        "throttled": ", ".join(gpu.throttle or ()),
    }


def _host(host: Host) -> str:
    parts = (
        _text(host.cpu, "CPU {:.0f}%") + _text(host.own_cores, " ({:.1f} cores by this process)"),
        _text(host.ram_used, "RAM {:.1f}", _gib) + _text(host.ram_total, " of {:.1f} GiB", _gib),
    )
    return "  ".join(filter(None, parts))


def _gib(mib: float) -> float:
    return mib / 1024


def _text(value: float | None, form: str, convert: Callable[[float], object] = lambda value: value) -> str:
    """The value in the form; nothing where it is not known."""
    return "" if value is None else form.format(convert(value))
