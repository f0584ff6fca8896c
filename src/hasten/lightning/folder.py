"""The run directory of a training that Lightning makes, so that `hasten watch` and `hasten report` read it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hasten.config.load import dump_run
from hasten.observe.clock import Spent
from hasten.observe.env import environment
from hasten.observe.rundir import (
    ENV_JSON,
    METRICS_JSONL,
    REPORT_HTML,
    RUN_YAML,
    SUMMARY_JSON,
    append_jsonl,
    read_jsonl,
    write_json,
    write_jsonl,
)
from hasten.report.page import write_report
from hasten.training.plan import RunPlan, with_train

log = logging.getLogger(__name__)


class RunFolder:
    """The files that rank 0 writes. A failed write is logged once and does not end the training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._best: tuple[float, int] | None = None
        self._warned = False

    def make(self, *, resumed: bool) -> None:
        """Create the folder. Raises ValueError if that fails, or if it holds a run and this one is not resumed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be made ({error.strerror}); name another folder") from None
        existing = [name for name in (METRICS_JSONL, SUMMARY_JSON, RUN_YAML) if (self.path / name).exists()]
        if existing and not resumed:
            raise ValueError(
                f"{self.path}: holds a run already ({', '.join(existing)}); name another folder, or resume that "
                "run by Trainer.fit(..., ckpt_path=...)"
            )

    def begin(self, planned: RunPlan | None, *, steps: float, done: int) -> None:
        """Start recording; records after step `done` are dropped on resuming. steps: of the whole training."""
        with self._warn_once():
            path = self.path / METRICS_JSONL
            records = [record for record in read_jsonl(path) if record.get("step", 0) <= done]
            if path.exists():
                write_jsonl(path, records)
            for record in records:
                self._keep_best(record)
            (self.path / SUMMARY_JSON).unlink(missing_ok=True)
            (self.path / RUN_YAML).write_text(_settings(planned, int(steps) if math.isfinite(steps) else None))
            write_json(self.path / ENV_JSON, environment())

    def record(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        self._keep_best(line)
        with self._warn_once():
            append_jsonl(self.path / METRICS_JSONL, dict(line))

    def end(self, status: str, spent: Spent, **facts: Any) -> None:
        """summary.json and the page. facts: what only the Trainer knows."""
        best, step = self._best or (None, 0)
        summary = {
            "status": status,
            "name": self.path.resolve().name,
            "target": {"metric": "mean_dice", "value": None, "reached": False, "time_s": None},
            "best": {"metric": "mean_dice", "value": best, "step": step},
            "seconds": spent.seconds,
            "samples_per_s": spent.samples_per_s,
            "wait_share": spent.wait_share,
            "accelerators": {},
            "environment": environment(),
            **facts,
        }
        with self._warn_once():
            write_json(self.path / SUMMARY_JSON, summary)
            write_report([self.path], self.path / REPORT_HTML)

    def _keep_best(self, line: Mapping[str, Any]) -> None:
        dice = line.get("dice")
        if dice is not None and not math.isnan(dice) and (self._best is None or dice > self._best[0]):
            self._best = (dice, int(line["step"]))

    @contextlib.contextmanager
    def _warn_once(self) -> Any:
        try:
            yield
        except OSError as error:
            if not self._warned:
                log.warning(
                    "%s: cannot be written to (%s); the training continues without its records",
                    self.path,
                    error.strerror or error,
                )
            self._warned = True


def _settings(planned: RunPlan | None, steps: int | None) -> str:
    """The run's YAML; for a training on other data only its number of steps."""
    if planned is None:
        return str(yaml.safe_dump({"train": {"steps": steps}}))
    return dump_run((with_train(planned, steps=steps) if steps else planned).config)
