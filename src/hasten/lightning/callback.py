"""`HastenCallback`: monitor, run directory, report and the doctor's verdict for a Lightning Trainer."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.doctor.script import report
from hasten.doctor.script.doctor import judge
from hasten.doctor.script.launch import ScriptRun
from hasten.lightning.data import HastenDataModule, lightning_package
from hasten.lightning.folder import RunFolder
from hasten.lightning.timed import Steps, TimedProfiler, TrainerStats, record_of
from hasten.observe.clock import Spent, process_start_seconds
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.monitor import Monitor
from hasten.training.records import TrainLog

log = logging.getLogger(__name__)

_SPANS = {"wait_for_data": "wait", "validate": "validation", "checkpoint": "checkpoint"}
"""Entries of summary.json's seconds, and the part of a step of each; the rest of the steps is `train`."""


class HastenCallback(lightning_package().Callback):  # type: ignore[misc]
    """Samples the machine, records loss, pace and Dice, and reports in the end where the steps' time went.

    The folder is a run directory: `hasten watch` follows it, `hasten report` compares it with others. It gets
    monitor.csv and .jsonl (of each rank), metrics.jsonl, summary.json, report.html, doctor.json and doctor.html. The
    loss is rank 0's, read from the device once a line. Times come from the Trainer's profiler hooks: tens of
    microseconds a step; on a GPU every 32nd step is synchronized part by part. The doctor's findings need no further
    experiment: `hasten doctor -- python train.py` measures the cures too.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        dice: str = "val_dice",
        monitor_every: float = 1.0,
        log_every: int | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        """out: a separate folder for each training. dice: name under which the LightningModule logs its validation's
        score; "dice/NAME" is a class of it. monitor_every: seconds, 0 is off. log_every: steps; None takes the
        Trainer's log_every_n_steps. tell: receives the doctor's lines, on rank 0.
        """
        super().__init__()
        if monitor_every < 0 or (log_every is not None and log_every < 1):
            raise ValueError(
                f"HastenCallback: monitor_every={monitor_every}, log_every={log_every}; give 0 or more seconds, and 1 "
                "or more steps"
            )
        self.out, self.dice, self.monitor_every = Path(out), dice, monitor_every
        self._log_every, self._tell = log_every, tell
        self._folder = RunFolder(self.out)
        self._earlier = Spent()
        self._clear()

    def _clear(self) -> None:
        self._steps, self._stats = Steps(), TrainerStats()
        self._step = 0
        self._new_epoch = False
        self._monitor: Monitor | None = None
        self._lines: TrainLog | None = None
        self._validating: float | None = None
        self._warned_missing = False
        self._goes = False

    def time_s(self) -> float:
        """Seconds since the run's process began, those of the processes before it included."""
        return self._earlier.total_s + process_start_seconds()

    # Lightning's hooks, in their order

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            trainer.profiler = TimedProfiler(trainer.profiler, self._steps)

    def state_dict(self) -> dict[str, Any]:
        return {"spent": asdict(self._spent())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._earlier = Spent.of_checkpoint(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The clock of the first step starts. Raises ValueError where the folder holds another run."""
        device = trainer.strategy.root_device
        self._step = trainer.global_step
        self._load, self._began = LoadMeter(), time.perf_counter()
        if trainer.is_global_zero:
            # Only now is it known whether the Trainer resumes from a checkpoint.
            self._folder.make(resumed=self._step > 0)
            source = trainer.datamodule._source if isinstance(trainer.datamodule, HastenDataModule) else None
            self._folder.begin(source, steps=trainer.estimated_stepping_batches, done=self._step)
            self._lines = TrainLog(self._folder.record, self._spent_now)
        if self.monitor_every > 0:
            self.out.mkdir(parents=True, exist_ok=True)
            self._monitor = Monitor(
                self.out,
                every=self.monitor_every,
                steps=lambda: self._step,
                offset_s=self.time_s,
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                gpus=[f"GPU-{torch.cuda.get_device_properties(device).uuid}"] if device.type == "cuda" else (),
            )
            self._monitor.start()
        if device.type == "cuda":
            self._steps.wait_for_device = lambda: torch.cuda.synchronize(device)
        self._goes = True
        self._steps.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._new_epoch = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._stats.batch(batch)
        if self._new_epoch:
            self._new_epoch = False
            self._stats.epoch_starts.append(self._steps.waited())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step; its loss stays on the device until a line is due."""
        self._steps.end()
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
        if self._goes:
            self._validating = time.perf_counter()
            self._steps.cover("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the validation, if the module logged a score."""
        if not self._goes or self._validating is None:
            return
        self._steps.cover("")
        seconds, self._validating = time.perf_counter() - self._validating, None
        self._stats.validations.append({"step": self._steps.count, "seconds": seconds})
        if self._lines is None:
            return
        scores = trainer.callback_metrics
        if self.dice in scores:
            prefix = f"{self.dice}/"
            classes = {name.removeprefix(prefix): float(scores[name]) for name in scores if name.startswith(prefix)}
            line = {"kind": "validation", "step": self._step, "time_s": self.time_s()}
            self._folder.record(
                {**line, "dice": float(scores[self.dice]), "dice_per_class": classes, "seconds": seconds}
            )
        elif not self._warned_missing:
            self._warned_missing = True
            log.warning(
                'HastenCallback: no "%s" was logged, so that the run has no Dice; logged were %s. Name one of them: '
                "HastenCallback(..., dice=NAME)",
                self.dice, ", ".join(sorted(scores)) or "none",
            )  # fmt: skip

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end(trainer, pl_module, "finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        was_interrupted = isinstance(exception, KeyboardInterrupt) or type(exception).__name__ == "SIGTERMException"
        self._end(trainer, pl_module, "interrupted" if was_interrupted else "failed")

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
        parts = dict(self._steps.totals)
        seconds = {name: parts.pop(part, 0.0) for name, part in _SPANS.items()}
        return Spent({"total": process_start_seconds(), "train": sum(parts.values()), **seconds}, self._stats.samples)

    def _end(self, trainer: Any, pl_module: Any, status: str) -> None:
        """Write summary and diagnosis once, however the training ended."""
        if isinstance(trainer.profiler, TimedProfiler):
            trainer.profiler, timed = trainer.profiler.inner, trainer.profiler
        else:
            return
        if not self._goes:
            self._clear()
            return
        if self._lines is not None and self._lines.losses:
            self._line(trainer)
        self._steps.close()
        if self._monitor is not None:
            self._monitor.stop()
        if trainer.is_global_zero:
            seconds, others = time.perf_counter() - self._began, self._load.others()
            self._folder.end(
                status,
                self._spent(),
                steps=self._step,
                earlier_seconds=self._earlier.total_s,
                world={"size": trainer.world_size, "strategy": type(trainer.strategy).__name__},
            )
            record = record_of(trainer, pl_module, self._steps, self._stats, timed.inner)
            command = tuple(sys.argv)
            run = ScriptRun(command=command, exit_code=0, ended="finished", records=[record], seconds=seconds)
            diagnosis = judge(run, others=others)
            for line in report.summary(diagnosis)[1:]:
                self._tell(line)
            for path in report.write(diagnosis, self.out):
                self._tell(f"written    {path}")
        self._clear()
