"""`HastenCallback`: monitor, run directory and report for a Lightning Trainer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hasten.config.load import dump_run
from hasten.devices import uuids
from hasten.lightning.data import HastenDataModule, lightning_package
from hasten.observe.clock import Clock, Spent, process_start_seconds
from hasten.observe.env import environment
from hasten.observe.monitor import Monitor
from hasten.observe.monitor.recording import read_records
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
    write_text,
)
from hasten.report.page import write_report
from hasten.training.plan import RunPlan, with_train
from hasten.training.records import TrainLog

log = logging.getLogger(__name__)

_SPANS = {"train_dataloader_next": "wait_for_data", "save_checkpoint": "checkpoint"}
"""Endings of a Trainer's profiler actions, and the entry of summary.json's seconds of each."""


class TimedProfiler:
    """Wraps the Trainer's own profiler and adds the actions of `_SPANS` to a clock."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self.inner, self.clock = inner, clock

    def start(self, action: str) -> None:
        name = _SPANS.get(action.rpartition(".")[2])
        if name is not None:
            self.clock.span(name).__enter__()
        self.inner.start(action)

    def stop(self, action: str) -> None:
        self.inner.stop(action)
        name = _SPANS.get(action.rpartition(".")[2])
        if name is not None:
            self.clock.span(name).__exit__()

    @contextmanager
    def profile(self, action: str) -> Generator[str, None, None]:
        try:
            self.start(action)
            yield action
        finally:
            self.stop(action)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class HastenCallback(lightning_package().Callback):  # type: ignore[misc]
    """Samples the machine, and records loss, pace and Dice.

    The folder is a run directory: `hasten watch` follows it, `hasten report` compares it with others. It gets
    monitor.jsonl (of each rank), metrics.jsonl, summary.json and report.html. The loss is rank 0's, read from
    the device once a line. Where the time of the steps goes, `hasten doctor -- python train.py` tells.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        dice: str = "val_dice",
        monitor_every: float = 1.0,
        log_every: int | None = None,
    ) -> None:
        """out: a separate folder for each training. dice: name under which the LightningModule logs its validation's
        score; "dice/NAME" is a class of it. monitor_every: seconds, 0 is off. log_every: steps; None takes the
        Trainer's log_every_n_steps.
        """
        super().__init__()
        if monitor_every < 0 or (log_every is not None and log_every < 1):
            raise ValueError(
                f"HastenCallback: monitor_every={monitor_every}, log_every={log_every}; give 0 or more seconds, and 1 "
                "or more steps"
            )
        self.out, self.dice, self.monitor_every = Path(out), dice, monitor_every
        self._log_every, self._earlier, self._cannot_write = log_every, Spent(), False
        self._clear()

    def _clear(self) -> None:
        self._clock, self._samples, self._step, self._before = Clock(), 0, 0, 0.0
        self._began: float | None = None
        self._monitor: Monitor | None = None
        self._lines: TrainLog | None = None
        self._validating: float | None = None
        self._warned_missing = False

    def time_s(self) -> float:
        """Seconds since the run's process began, those of the processes before it included."""
        return self._earlier.total_s + process_start_seconds()

    # Lightning's hooks, in their order

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            trainer.profiler = TimedProfiler(trainer.profiler, self._clock)

    def state_dict(self) -> dict[str, Any]:
        return {"spent": asdict(self._spent())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._earlier = Spent(**state_dict["spent"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The training begins. Raises ValueError where the folder holds another run."""
        device = trainer.strategy.root_device
        self._step = trainer.global_step
        if trainer.is_global_zero:
            # Only now is it known whether the Trainer resumes from a checkpoint.
            self._begin(trainer)
            self._lines = TrainLog(self._record, self._spent_now)
        if self.monitor_every > 0:
            self.out.mkdir(parents=True, exist_ok=True)
            # Lightning starts the other ranks once the first is set up: their samples have its clock.
            later_s = trainer.strategy.broadcast(self.time_s()) - self.time_s()
            self._monitor = Monitor(
                self.out,
                every=self.monitor_every,
                steps=lambda: self._step,
                age_s=lambda: self.time_s() + later_s,
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                gpus=uuids(device),
            )
            self._monitor.start()
        self._began, self._before = time.perf_counter(), sum(self._clock.seconds.values())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._samples += _samples_of(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step; its loss stays on the device until a line is due."""
        stepped, self._step = trainer.global_step != self._step, trainer.global_step
        if self._lines is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._lines.losses.append(loss.detach())
        every = self._log_every or trainer.log_every_n_steps or 1
        if stepped and self._step % every == 0:
            self._line(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._began is not None:
            self._validating = time.perf_counter()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the validation, if the module logged a score."""
        if self._validating is None:
            return
        seconds, self._validating = time.perf_counter() - self._validating, None
        self._clock.span("validate").add(seconds)
        if self._lines is None:
            return
        scores = trainer.callback_metrics
        if self.dice in scores:
            prefix = f"{self.dice}/"
            classes = {name.removeprefix(prefix): float(scores[name]) for name in scores if name.startswith(prefix)}
            line = {"kind": "validation", "step": self._step, "time_s": self.time_s()}
            self._record({**line, "dice": float(scores[self.dice]), "dice_per_class": classes, "seconds": seconds})
        elif not self._warned_missing:
            self._warned_missing = True
            log.warning('HastenCallback: no "%s" among what was logged (%s); name it: dice=', self.dice, sorted(scores))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end(trainer, "finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        was_interrupted = isinstance(exception, KeyboardInterrupt) or type(exception).__name__ == "SIGTERMException"
        self._end(trainer, "interrupted" if was_interrupted else "failed")

    # What they share

    def _line(self, trainer: Any) -> None:
        assert self._lines is not None
        rate = trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else 0.0
        self._lines.write(self._step, rate=float(rate), time_s=self.time_s(), skipped=0)

    def _spent(self) -> Spent:
        """Cost of the whole training so far, its earlier processes included."""
        return self._earlier + self._spent_now()

    def _spent_now(self) -> Spent:
        """Cost of this process."""
        seconds = {"validate": 0.0, "wait_for_data": 0.0, **self._clock.seconds}
        began = time.perf_counter() if self._began is None else self._began
        trained = time.perf_counter() - began - (sum(seconds.values()) - self._before)
        return Spent({"total": process_start_seconds(), "train": max(0.0, trained), **seconds}, self._samples)

    def _end(self, trainer: Any, status: str) -> None:
        """Write the summary once, however the training ended."""
        if not isinstance(trainer.profiler, TimedProfiler):
            return
        trainer.profiler = trainer.profiler.inner
        if self._lines is not None and self._lines.losses:
            self._line(trainer)
        if self._monitor is not None:
            self._monitor.stop()
        if self._began is not None and trainer.is_global_zero:
            self._write_summary(trainer, status)
        self._clear()

    # The files that rank 0 writes

    def _begin(self, trainer: Any) -> None:
        """Make the folder, without records after the step that a resumed training begins with.

        Raises ValueError if that fails, or if the folder holds a run and this one is not resumed.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self.out}: cannot be made ({error.strerror}); name another folder") from None
        existing = [name for name in (METRICS_JSONL, SUMMARY_JSON, RUN_YAML) if (self.out / name).exists()]
        if existing and self._step == 0:
            raise ValueError(
                f"{self.out}: holds a run already ({', '.join(existing)}); name another folder, or resume that "
                "run by Trainer.fit(..., ckpt_path=...)"
            )
        planned = trainer.datamodule.planned if isinstance(trainer.datamodule, HastenDataModule) else None
        steps = trainer.estimated_stepping_batches
        with self._warn_once():
            path = self.out / METRICS_JSONL
            if path.exists():
                write_jsonl(path, [record for record in read_jsonl(path) if record.get("step", 0) <= self._step])
            (self.out / SUMMARY_JSON).unlink(missing_ok=True)
            write_text(self.out / RUN_YAML, _settings(planned, int(steps) if math.isfinite(steps) else None))
            write_json(self.out / ENV_JSON, environment())

    def _record(self, line: Mapping[str, Any]) -> None:
        with self._warn_once():
            append_jsonl(self.out / METRICS_JSONL, dict(line))

    def _write_summary(self, trainer: Any, status: str) -> None:
        """summary.json and the page."""
        spent = self._spent()
        with self._warn_once():
            lines, _ = read_records(self.out / METRICS_JSONL)
            scored = [line for line in lines if line.get("dice") is not None]
            best = max(scored, key=lambda line: line["dice"], default={"dice": None, "step": 0})
            summary = {
                "status": status,
                "name": self.out.resolve().name,
                "target": {"metric": "mean_dice", "value": None, "reached": False, "time_s": None},
                "best": {"metric": "mean_dice", "value": best["dice"], "step": best["step"]},
                "seconds": spent.seconds,
                "earlier_seconds": self._earlier.total_s,
                "steps": self._step,
                "samples_per_s": spent.samples_per_s,
                "wait_share": spent.wait_share,
                "accelerators": {},
                "world": {"size": trainer.world_size, "strategy": type(trainer.strategy).__name__},
                "environment": environment(),
            }
            write_json(self.out / SUMMARY_JSON, summary)
            write_report([self.out], self.out / REPORT_HTML)

    @contextmanager
    def _warn_once(self) -> Generator[None, None, None]:
        """A write that fails is logged once, and does not end the training."""
        try:
            yield
        except OSError as error:
            if not self._cannot_write:
                log.warning(
                    "%s: cannot be written to (%s); the training continues without its records",
                    self.out,
                    error.strerror or error,
                )
            self._cannot_write = True


def _samples_of(batch: Any) -> int:
    """Samples of a batch: the length of its first image, or else of its first tensor."""
    tensors = [value for value in tree_leaves(batch) if isinstance(value, Tensor) and value.ndim]
    image = next((value for value in tensors if value.ndim >= 4), None)
    return len(tensors[0] if image is None else image) if tensors else 0


def _settings(planned: RunPlan | None, steps: int | None) -> str:
    """The run's YAML; for a training on other data only its number of steps."""
    if planned is None:
        return str(yaml.safe_dump({"train": {"steps": steps}}))
    return dump_run((with_train(planned, steps=steps) if steps else planned).config)
