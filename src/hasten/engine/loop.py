"""The training loop, on an ignite Engine: steps, logging, validation, checkpoints, and stopping."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from hasten.config.load import to_dict
from hasten.engine.checkpoint import read_checkpoint, write_checkpoint
from hasten.engine.metric import Dice
from hasten.engine.parts import Parts
from hasten.engine.validate import validate
from hasten.feed.feed import Feed
from hasten.observe.clock import Clock, process_start_seconds
from hasten.observe.progress import Progress
from hasten.observe.rundir import CHECKPOINTS, METRICS_JSONL, append_jsonl, read_jsonl, write_jsonl

_LOGS = 200
"""Train lines in metrics.jsonl of a full run, about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best validation so far; step 0 and nan before the first."""

    value: float
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended."""

    status: str
    """`finished`, `target_reached`, `time_up` or `interrupted`."""
    step: int
    best: Best
    target_time_s: float | None
    last: Dice | None
    wait_seconds: float
    samples_per_s: float
    elapsed: float
    """Seconds of the processes before this one, if the run was resumed."""


class Loop:
    """One run from step `first` to its end. Holds what changes while it goes."""

    def __init__(
        self, parts: Parts, out: Path, clock: Clock, progress: Progress | None, *, first: int, elapsed: float
    ) -> None:
        self.parts, self.out, self.clock, self.progress = parts, out, clock, progress
        self.first, self.elapsed = first, elapsed
        self.train = parts.planned.config.train
        self.steps = self.train.steps or 0
        self.batch_size = parts.planned.config.sample.batch_size or 1
        self.feed = Feed(parts.program, device=parts.planned.device, first=first, last=self.steps)
        self.best = Best(value=math.nan, step=0)
        self.last: Dice | None = None
        self.status = "finished"
        self.target_time_s: float | None = None
        self.stop_signal = False
        self._began_offset = process_start_seconds() - time.perf_counter()
        self._losses: list[Tensor] = []
        self._logged = first
        self._mark = (0.0, 0.0)

    def time_s(self) -> float:
        """Seconds since the run's process started, those of earlier processes of the run included."""
        return self.elapsed + self._began_offset + time.perf_counter()

    def run(self) -> Outcome:
        """Train to the end, to the target, to the time limit, or to a Ctrl-C."""
        self._take_up_records()
        engine = Engine(self._step)
        per_epoch = max(1, -(-len(self.parts.planned.train) // self.batch_size))
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._after_step)
        # All state of the run lies in (seed, step), so that ignite is told where to go on and skips nothing.
        epochs = max(1, -(-max(self.steps, self.first) // per_epoch))
        engine.load_state_dict({"iteration": self.first, "epoch_length": per_epoch, "max_epochs": epochs})
        if self.progress:
            self.progress.start(self.steps, self.train.target)
        before = _catch_interrupt(self)
        self._mark = (time.perf_counter(), 0.0)
        try:
            if self.first < self.steps and self.status == "finished":
                engine.run(self.feed)
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
            if self.progress:
                self.progress.stop()
        step = max(engine.state.iteration, self.first)
        trained = self.clock.seconds.get("train", 0.0) + self.feed.wait_seconds
        done = (step - self.first) * self.batch_size
        return Outcome(
            status=self.status,
            step=step,
            best=self.best,
            target_time_s=self.target_time_s,
            last=self.last,
            wait_seconds=self.feed.wait_seconds,
            samples_per_s=done / trained if trained > 0 else 0.0,
            elapsed=self.elapsed,
        )

    def _take_up_records(self) -> None:
        """Drop what an earlier process recorded after `first`, and see whether it had reached the target by then."""
        path = self.out / METRICS_JSONL
        kept = [record for record in read_jsonl(path) if record.get("step", 0) <= self.first]
        write_jsonl(path, kept)
        for record in kept:
            dice = record.get("dice")
            if self.train.target is not None and dice is not None and dice >= self.train.target:
                self.status, self.target_time_s = "target_reached", record["time_s"]
                return

    def _step(self, engine: Engine, batch: tuple[Tensor, Tensor]) -> None:
        with self.clock.span("train"):
            image, label = batch
            self._losses.append(self.parts.step(image, label, engine.state.iteration - 1))

    def _after_step(self, engine: Engine) -> None:
        step = engine.state.iteration
        if step % max(1, self.steps // _LOGS) == 0 or step == self.steps:
            self._log(step)
        if step % (self.train.validate_every or self.steps) == 0 or step == self.steps:
            self._validate(step)
        if self.stop_signal and self.status == "finished":
            self.status = "interrupted"
        stops = self.status != "finished" or step >= self.steps
        if stops or step % (self.train.checkpoint_every or self.steps) == 0:
            self._save_last(step)
        if stops:
            engine.terminate()

    def _log(self, step: int) -> None:
        with self.clock.span("train"):
            loss = float(torch.stack(self._losses).mean()) if self._losses else math.nan
        # Of this process alone: `_losses` of a resumed run begins with those of the process before it.
        count, self._logged = step - self._logged, step
        self._losses.clear()
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}", step)
        now, waited = time.perf_counter(), self.feed.wait_seconds
        spent = now - self._mark[0]
        share = (waited - self._mark[1]) / spent if spent > 0 else 0.0
        speed = count * self.batch_size / spent if spent > 0 else 0.0
        self._mark = (now, waited)
        record = {
            "kind": "train",
            "step": step,
            "time_s": self.time_s(),
            "loss": loss,
            "lr": self.parts.rate(step - 1),
            "samples_per_s": speed,
            "wait_share": share,
        }
        append_jsonl(self.out / METRICS_JSONL, record)
        if self.progress:
            self.progress.update(step, loss=loss, samples_per_s=speed, wait_share=share)

    def _diverged(self, what: str, step: int) -> ValueError:
        saved = (self.out / CHECKPOINTS / "last.pt").exists()
        return ValueError(
            f"{what} at step {step}: lower train.learning_rate (now {self.train.learning_rate}) or set "
            "train.precision=fp32" + (f"; {self.out / CHECKPOINTS} holds the last good state" if saved else "")
        )

    def _require_finite(self, step: int) -> None:
        """A state that has gone wrong must not take the place of the last good one; the loss may say so only later."""
        with self.clock.span("train"), torch.no_grad():
            norm = float(nn.utils.get_total_norm(self.parts.step.update.weights.parameters()))
        if not math.isfinite(norm):
            raise self._diverged(f"the norm of the weights is {norm}", step)

    def _validate(self, step: int) -> None:
        self._require_finite(step)
        begin = time.perf_counter()
        with self.clock.span("validate"):
            dice = self.last = validate(self.parts)
        seconds = time.perf_counter() - begin
        now = self.time_s()
        append_jsonl(
            self.out / METRICS_JSONL,
            {
                "kind": "validation",
                "step": step,
                "time_s": now,
                "dice": dice.mean,
                "dice_per_class": dice.per_class,
                "seconds": seconds,
            },
        )
        if not self.best.value >= dice.mean:
            self.best = Best(value=dice.mean, step=step)
            with self.clock.span("checkpoint"):
                write_checkpoint(self.out / CHECKPOINTS / "best.pt", model_content(self.parts, dice, step))
        if self.train.target is not None and dice.mean >= self.train.target:
            self.status, self.target_time_s = "target_reached", now
        elif self.train.max_seconds is not None and now >= self.train.max_seconds:
            self.status = "time_up"
        if self.progress:
            self.progress.update(step, dice=dice.mean)
        # What validation took is no part of the next log line's speed.
        self._mark = (self._mark[0] + time.perf_counter() - begin, self._mark[1])

    def _save_last(self, step: int) -> None:
        self._require_finite(step)
        with self.clock.span("checkpoint"):
            write_checkpoint(self.out / CHECKPOINTS / "last.pt", self._state(step))

    def _state(self, step: int) -> dict[str, Any]:
        update = self.parts.step.update
        average = update.average.state_dict() if update.average is not None else None
        scaler = update.scaler.state_dict() if update.scaler is not None else {}
        device = self.parts.planned.device
        return {
            "step": step,
            "elapsed": self.time_s(),
            "best": {"value": self.best.value, "step": self.best.step},
            "network": update.weights.state_dict(),
            "average": average,
            "optimizer": update.optimizer.state_dict(),
            "scaler": scaler,
            "skipped": update.skipped,
            "random_state": torch.get_rng_state(),
            "device_random_state": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            # Losses of steps after the last log line, so that a resumed run's next line is the same.
            "losses": torch.stack(self._losses).cpu() if self._losses else torch.zeros(0),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `_state` saved; the loop was made with that step as `first`."""
        update = self.parts.step.update
        update.weights.load_state_dict(state["network"])
        if update.average is not None:
            update.average.load_state_dict(state["average"] or state["network"])
        update.optimizer.load_state_dict(state["optimizer"])
        _lay_out(update.optimizer)
        if update.scaler is not None:
            update.scaler.load_state_dict(state["scaler"])
        update.skipped.copy_(state["skipped"])
        device = self.parts.planned.device
        torch.set_rng_state(state["random_state"])
        if device.type == "cuda" and state["device_random_state"] is not None:
            torch.cuda.set_rng_state(state["device_random_state"], device)
        self.best = _best_on_disk(self.out / CHECKPOINTS / "best.pt")
        self._losses = list(state["losses"].to(device).unbind(0))


def model_content(parts: Parts, dice: Dice, step: int) -> dict[str, Any]:
    """What a prediction needs: the validated weights and everything to rebuild their network and its input."""
    case_set = parts.planned.case_set
    return {
        "weights": parts.validated.state_dict(),
        "config": to_dict(parts.planned.config),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "channels": list(case_set.channels),
        "spatial_dims": case_set.spatial_dims,
        "step": step,
        "dice": dice.mean,
    }


def _best_on_disk(path: Path) -> Best:
    """What best.pt holds. It may be later than last.pt, and a file that can't be read is to be written anew."""
    try:
        content = read_checkpoint(path)
    except ValueError:
        return Best(value=math.nan, step=0)
    return Best(value=content["dice"], step=content["step"])


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give the moments their parameter's memory format, which may be set anew on resuming.

    The fused AdamW walks both in the order of memory and is silently wrong where they differ (torch 2.13).
    """
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)


def _catch_interrupt(loop: Loop) -> Any:
    """A first Ctrl-C ends the run at the step's end; a second one ends it at once. Returns the handler before."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def note(number: int, frame: FrameType | None) -> None:
        loop.stop_signal = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return signal.signal(signal.SIGINT, note)
