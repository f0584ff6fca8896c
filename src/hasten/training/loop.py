"""The training loop: steps, logging, validation, checkpoints, and stopping."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.checkpoint.file import Checkpoints, write_checkpoint
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import restore_state, training_state
from hasten.config.decision import Accelerators
from hasten.devices import kind_of
from hasten.distribute.consensus import broadcast_from_rank0
from hasten.distribute.launch.watchdog import watchdog_of
from hasten.feed.feed import Feed
from hasten.observe.clock import Clock, Spent
from hasten.observe.progress import Progress
from hasten.observe.rundir import BEST_PT, CHECKPOINTS, METRICS_JSONL, RANKS, SUMMARY_JSON, read_jsonl, write_jsonl
from hasten.runtime.gc_control import collected_between_steps
from hasten.training.components import Best, Evaluator, LoopComponents, ValidationScore, best_on_disk
from hasten.training.ranks import mean_over_ranks, states_of_ranks, take_up_random
from hasten.training.records import Records, TrainLog, record_of_rank
from hasten.training.stop import StopRequest
from hasten.training.time_limit import TimeLimit

log = logging.getLogger(__name__)

_LOGS = 200
"""Train lines in metrics.jsonl of a full run, about."""
_LOG_EVERY = 10
"""Steps between lines, at least, on an accelerator, where the host waits for all queued steps to read a loss."""
_STUCK = 10
"""A run ends if at least this many updates in a row were skipped."""
_STOP_EVERY = 8
"""Steps between checks whether another rank was asked to stop."""


def log_every(steps: int, device: torch.device) -> int:
    """Interval, in steps, of the train lines of a run of `steps` steps."""
    return max(_LOG_EVERY if kind_of(device).accelerator else 1, steps // _LOGS)


class Loop:
    """One run from step `first` to its end. Holds the state that changes during the run."""

    def __init__(
        self,
        components: LoopComponents,
        evaluator: Evaluator,
        out: Path,
        clock: Clock,
        progress: Progress | None,
        *,
        first: int,
        earlier: Spent,
        reserve_s: float = 0.0,
    ) -> None:
        """earlier: of the processes that trained up to `first`.

        reserve_s: seconds within train.budget that the caller needs after the run.
        """
        self.components, self.evaluator, self.out = components, evaluator, out
        self.clock, self.progress = clock, progress
        self.first, self.earlier, self.train, self.device = first, earlier, components.train, components.step.device
        self.steps = self.train.steps
        self.feed = Feed(components.program, first=first, last=self.steps)
        self.done = first
        self.strategy, self.world = components.step.strategy, components.step.strategy.world
        self.watchdog = watchdog_of(self.world, out / RANKS, timeout_s=components.timeout_s)
        self.records = Records(out, components, steps=lambda: self.done, time_s=self.time_s, first=first)
        self.log = TrainLog(
            self.records.record if self.world.first else None,
            self._spent_now,
            shared=partial(mean_over_ranks, strategy=self.strategy),
        )
        self.saver = Saver()
        self.stop = StopRequest(every=_STOP_EVERY, timeout_s=components.timeout_s)
        self.checkpoints = Checkpoints(out / CHECKPOINTS)
        self.best = Best()
        self.limit = TimeLimit(components, evaluator, self.time_s, reserve_s)
        self._best_covers = evaluator.covers
        self.last: Any = None
        """The evaluator's last score; None before the first validation."""
        self.validated_network = components.validated
        """The weights validated last, complete on this rank."""
        self.status = "finished"
        """Status of the run: also `target_reached`, `time_up`, `interrupted`."""
        self.target_time_s: float | None = None
        self.stop_signal: signal.Signals | None = None
        """The signal that asked the run to stop."""
        self._checked = (first, 0)

    @property
    def accelerators(self) -> Accelerators:
        """What is on and what is not: of the components, of the validation, and of the step as a graph."""
        captured = self.components.captured
        graph = {} if captured is None else {"CUDA graph": captured.accelerator}
        return {**self.components.accelerators, **self.evaluator.accelerators, **graph}

    def time_s(self) -> float:
        """Seconds of the run, those of earlier processes of it included."""
        return self.earlier.total_s + self.clock.elapsed

    def run(self) -> None:
        """Train to the last step, the target, the time limit or a stop signal; `status` then says which."""
        self._restore_records()
        if self.progress:
            self.progress.start(self.steps, self.train.target, self.evaluator.metric)
        try:
            with (
                self.stop,
                self.watchdog or nullcontext(),
                self.saver,
                collected_between_steps() as self._collect,
            ):
                if self.components.paced.done(self.first) or self.status != "finished":
                    return
                captured = self.components.captured  # makes its own batches
                batches: Iterable[Any] = self.feed if captured is None else range(self.first, self.steps)
                for index, batch in enumerate(batches, start=self.first):
                    with self.clock.span("train"):
                        if captured is None:
                            loss = self.components.step(batch["image"], batch["label"], index)
                        else:
                            if not captured.settled:
                                self.saver.wait()  # no other thread may use the device meanwhile
                            loss = captured(index)
                        self.log.losses.append(loss)
                    if self._after_step(index + 1):
                        break
        finally:
            if self.progress:
                self.progress.stop()

    def _restore_records(self) -> None:
        """Drop what an earlier process recorded after step `first`, and check whether it had reached the target."""
        path = self.out / METRICS_JSONL
        records: list[dict[str, Any]] | None = None
        if self.world.first:
            try:
                records = [record for record in read_jsonl(path) if record.get("step", 0) <= self.first]
            except TypeError:
                raise ValueError(f"{path}: has a step that is no number; correct or delete that line") from None
            write_jsonl(path, records)
            # Of the process before this one: a report of the run that goes on must not take it for the whole.
            (self.out / SUMMARY_JSON).unlink(missing_ok=True)
        for record in broadcast_from_rank0(self.world, records):
            value = record.get(self.evaluator.metric)
            if self.train.target is not None and value is not None and value >= self.train.target:
                self.status, self.target_time_s = "target_reached", record["time_s"]
                return

    # Between two steps

    def _after_step(self, step: int) -> bool:
        """Log, validate and save where they are due after `step` steps. Returns whether the run ends here."""
        self.done = step
        if self.watchdog is not None:
            self.watchdog.beat(step)
        # A validation or the wait for a disk may take long.
        with self.watchdog.paused() if self.watchdog is not None else nullcontext():
            if step % log_every(self.steps, self.device) == 0 or step == self.steps:
                self._log(step)
            self.limit.after_step(step, self.trained_s())
            paced, ends = self.components.paced, self.limit.over or self.components.paced.done(step)
            if ends or paced.reaches(step, self.train.validate_every, self.train.validate_from):
                self._validate(step, ends=ends)
            self.stop_signal = self.stop.agreed()
            if self.status == "finished":
                if self.stop_signal is not None:
                    self.status = "interrupted"
                elif ends and step < self.steps:
                    self.status = "time_up"
            stops = ends or self.status != "finished"
            if stops or paced.reaches(step, self.train.checkpoint_every):
                self._require_sound(step)
                with self.clock.span("checkpoint"):
                    state = self._state(step)
                    if self.world.first:
                        self.saver.save(state, self.checkpoints.write)
        return stops

    def trained_s(self) -> float:
        """Seconds of this process in steps, the wait for their batches included."""
        return self._spent_now().trained_s

    def spent(self) -> Spent:
        """Cost of the whole run so far, its earlier processes included."""
        return self.earlier + self._spent_now()

    def _spent_now(self) -> Spent:
        """Cost of this process."""
        seconds = {"total": self.clock.elapsed, **self.clock.seconds, "wait_for_data": self.feed.wait_seconds}
        return Spent(seconds=seconds, samples=self.components.program.samples(self.first, self.done))

    def _log(self, step: int) -> None:
        with self.clock.span("train"):
            skipped = int(self.components.step.update.skipped)
            line = self.log.write(step, rate=self.components.paced(step - 1), time_s=self.time_s(), skipped=skipped)
        if self.world.size > 1:
            record_of_rank(self.out, self.world, line)
        if not math.isfinite(line["loss"]):
            raise self._diverged("the loss is nan", step)
        if self.progress:
            shown = {name: line[name] for name in ("loss", "samples_per_s", "wait_share")}
            self.progress.expect(self.components.paced.end(step), self.limit.left_s)
            self.progress.update(step, **shown)

    def _diverged(self, what: str, step: int) -> ValueError:
        with suppress(OSError):
            self.saver.wait()
        saved = self.checkpoints.path.exists()
        return ValueError(
            f"{what} at step {step}: lower train.learning_rate (now {self.train.learning_rate}) or set "
            "train.precision=fp32, or look for a value that is far off in train.weight_decay or augment.override"
            + (f"; {self.out / CHECKPOINTS} holds the last good state" if saved else "")
        )

    def _require_sound(self, step: int) -> None:
        """Raise ValueError for a diverged state, which must not replace the last good checkpoint."""
        with self.clock.span("train"), torch.no_grad():
            norm = float(self.strategy.total_norm(list(self.components.step.update.weights.parameters())))
            skipped = int(self.components.step.update.skipped)
        if not math.isfinite(norm):
            raise self._diverged(f"the norm of the weights is {norm}", step)
        checked_step, checked_skipped = self._checked
        if step - checked_step >= _STUCK:
            if skipped - checked_skipped >= step - checked_step:
                raise self._diverged(f"no gradient has been finite since step {checked_step}", step)
            self._checked = (step, skipped)

    # Validation

    def _validate(self, step: int, *, ends: bool) -> None:
        if not ends and not self.limit.allows_validation(self.trained_s()):
            return
        self._require_sound(step)
        self._collect()
        begin = time.perf_counter()
        with self.clock.span("validate"):
            network = self.validated_network = self.strategy.whole(self.components.validated)
            score = self.evaluator(network, room=self.limit.room)
        self._record(score, step, network, seconds=time.perf_counter() - begin, last=ends)
        if self.limit.expired():  # by a validation that took longer than those before
            self.limit.over, self.status = True, "time_up"

    def _record(self, score: ValidationScore, step: int, network: nn.Module, *, seconds: float, last: bool) -> None:
        self.last, value, covers = score, score.value(self.evaluator.metric), self.evaluator.covers
        self.limit.validated(seconds, last=last)  # after which a validation may cover more
        # The clocks of ranks differ, and all must stop at the same step.
        now = broadcast_from_rank0(self.world, self.time_s())
        if self.world.first:
            line = {"kind": "validation", "step": step, "time_s": now, **score.record(), "seconds": seconds}
            self.records.record(line)
        if covers != self._best_covers:  # other cases, on which the best weights so far were not judged
            self.best, self._best_covers = Best(), covers
        if not self.best.value >= value:
            self.best = Best(value=value, step=step)
            if self.world.first:
                with self.clock.span("checkpoint"):
                    content = self.evaluator.content(network, score, step)
                    self.saver.save(content, partial(write_checkpoint, self.out / CHECKPOINTS / BEST_PT))
        if self.train.target is not None and value >= self.train.target:
            self.status, self.target_time_s = "target_reached", now
        if self.progress:
            self.progress.update(step, score=value, best=self.best.value)

    # Checkpoints

    def _state(self, step: int) -> dict[str, Any]:
        """The training state of a single process, complete on rank 0. All ranks call it."""
        update = self.components.step.update
        state = training_state(
            network=update.weights,
            optimizer=update.optimizer,
            step=step,
            average=update.average,
            scaler=update.scaler,
            extra={
                "spent": asdict(self.spent()),
                "position": self.components.paced.position(step),
                "losses": self.log.pending(),
                "skipped": update.skipped,
                "random_states": states_of_ranks(self.world, self.device),
            },
        )
        return self.strategy.gather_state(state)

    def restore(self, state: dict[str, Any], where: str) -> None:
        """Load what `_state` saved on rank 0; the loop was made with that step as `first`. All ranks call it."""
        update = self.components.step.update
        restore_state(
            self.strategy.scatter_state(state),
            network=update.weights,
            optimizer=update.optimizer,
            average=update.average,
            scaler=update.scaler,
            where=where,
        )
        update.skipped.fill_(int(state["extra"]["skipped"]))
        self.components.paced.start_at(self.first, state["extra"]["position"])
        take_up_random(state["extra"]["random_states"], self.world, self.device, seed=self.train.seed, step=self.first)
        self._checked = (self.first, int(update.skipped))
        best = best_on_disk(self.out / CHECKPOINTS / BEST_PT, self.evaluator.metric) if self.world.first else None
        self.best = broadcast_from_rank0(self.world, best)
        self.log.losses = list(state["extra"]["losses"].to(self.device).unbind(0))
