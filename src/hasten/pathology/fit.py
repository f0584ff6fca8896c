"""The training loop of a tile classifier: steps, log, validation on tiles, checkpoints, and stopping."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.augment.program import Program
from hasten.config.settled import PlannedTrain
from hasten.engine.checkpoint import write_checkpoint
from hasten.engine.checkpoints import Checkpoints
from hasten.engine.job import pick_device
from hasten.engine.measure import Engaged, Variant
from hasten.engine.outcome import Best, best_on_disk
from hasten.engine.precision import scaler_for
from hasten.engine.saver import Saver
from hasten.engine.state import restore_state, training_state
from hasten.engine.step import TrainStep, memory_format
from hasten.engine.stop import StopRequest
from hasten.engine.time_limit import TimeLimit
from hasten.engine.train_log import TrainLog
from hasten.engine.update import Update
from hasten.feed.feed import Feed
from hasten.observe.clock import Clock
from hasten.observe.progress import Progress
from hasten.observe.rundir import CHECKPOINTS, METRICS_JSONL, append_jsonl, read_jsonl, write_jsonl
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer, paced_schedule
from hasten.optim.schedule import PacedSchedule
from hasten.pathology.batches import balanced, make_batches
from hasten.pathology.config import DetectionConfig, dump
from hasten.pathology.evaluate import TileResult, evaluate_tiles
from hasten.pathology.heatmap import Scorer
from hasten.pathology.network import build_classifier, settle, tile_loss
from hasten.pathology.tiles import TileSet, num_threads

BEST_PT = "best.pt"
_READING = 2.0
"""Approximate time to read and score a tile of a slide, relative to scoring one in memory."""
_LOGS = 200
"""Approximate number of train lines in metrics.jsonl of a full run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The components of a training run."""

    config: DetectionConfig
    step: TrainStep
    batches: Program
    num_tiles: int
    validation: TileSet
    variant: Variant
    paced: PacedSchedule
    validate_every: int
    engaged: dict[str, Engaged]

    @property
    def steps(self) -> int:
        """Of the whole schedule."""
        return self.paced.steps

    @property
    def validated(self) -> nn.Module:
        """The averaged weights if there are any, else the weights."""
        update = self.step.update
        return update.average if update.average is not None else update.weights

    def scorer(self) -> Scorer:
        return scorer_of(self.validated, self.config, self.variant, self.step.device)


def scorer_of(network: nn.Module, config: DetectionConfig, variant: Variant, device: torch.device) -> Scorer:
    """network: moved to the device already."""
    return Scorer(
        network=network, variant=variant, device=device, batch_size=config.detect.batch_size,
        threads=num_threads(config.tiles),
    )  # fmt: skip


def make_parts(config: DetectionConfig, tiles: TileSet, validation: TileSet) -> Parts:
    """Network, step and batches; precision and memory format are measured where they are not set."""
    train, device = config.train, pick_device(config.train.device)
    torch.manual_seed(train.seed)
    network = build_classifier(config.network).to(device)
    variant, engaged = settle(network, config, device)
    network.to(memory_format=memory_format(2, variant.channels_last))  # type: ignore[call-overload]
    resident = device.type == "cpu" or tiles.image.numel() <= torch.cuda.mem_get_info(device)[0] // 2
    batches = make_batches(
        tiles, config.augment, batch_size=train.batch_size, seed=train.seed, device=device, resident=resident
    )
    host = {"ram": "host memory", "file": "a mapped file"}[tiles.home]
    where = "GPU memory" if resident and device.type == "cuda" else host
    engaged["tiles cached"] = Engaged(True, f"{tiles}, read once; batches are made from {where}")
    engaged["batched augmentation"] = Engaged(True, f"one program for a batch; compiled: {batches.why}")
    per_epoch = -(-len(balanced(tiles.label)) // train.batch_size)
    steps = train.steps or max(1, round(train.epochs * per_epoch))
    validate_every = train.validate_every or per_epoch
    settings = PlannedTrain(
        optimizer=train.optimizer, learning_rate=train.learning_rate, weight_decay=train.weight_decay,
        warmup_fraction=train.warmup_fraction, steps=steps, validate_every=validate_every,
        checkpoint_every=validate_every,
    )  # fmt: skip
    paced = paced_schedule(settings, train.batch_size)
    return Parts(
        config=config, step=_step(config, network, variant, settings, paced, device), batches=batches,
        num_tiles=len(tiles.label), paced=paced,
        validation=validation, variant=variant, validate_every=validate_every, engaged=engaged,
    )  # fmt: skip


def _step(
    config: DetectionConfig, network: nn.Module, variant: Variant, settings: PlannedTrain, paced: PacedSchedule,
    device: torch.device,
) -> TrainStep:  # fmt: skip
    train = config.train
    update = Update(
        weights=network, optimizer=build_optimizer(network, settings), schedule=paced,
        average=average_of(network) if train.ema > 0 else None, average_decay=train.ema, clip_norm=train.clip_norm,
        scaler=scaler_for(device, variant.precision),
    )  # fmt: skip
    return TrainStep(
        network=network.train(), loss=tile_loss, update=update, precision=variant.precision,
        channels_last=variant.channels_last, spatial_dims=2, device=device,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The outcome of a training run."""

    status: str
    """`finished`, `target_reached`, `time_up` or `interrupted`."""
    step: int
    best: Best
    last: TileResult | None
    samples_per_s: float
    wait_share: float


class Fit:
    """One training run in a run directory, resumed from its last checkpoint."""

    def __init__(
        self,
        parts: Parts,
        out: Path,
        clock: Clock,
        progress: Progress | None,
        *,
        cells: int = 0,
        reserve_s: float = 0.0,
    ) -> None:
        """cells: of the heat maps that follow the training; reserve_s: seconds that the caller needs after the run."""
        self.parts, self.out, self.clock, self.progress = parts, out, clock, progress
        self.checkpoints, self.saver, self.stop = Checkpoints(out / CHECKPOINTS), Saver(), StopRequest()
        self.first, self.elapsed = 0, 0.0
        self.feed = Feed(parts.batches, last=parts.steps)
        self.best = Best(value=math.nan, step=0)
        self.last: TileResult | None = None
        self.status = "finished"
        train, num_tiles = parts.config.train, len(parts.validation.label)
        expected_s = self._expected_seconds() if train.max_seconds is not None else 0.0
        self.limit = TimeLimit(
            seconds=train.max_seconds, time_s=self.time_s, paced=parts.paced, validate_every=parts.validate_every,
            validation_s=expected_s, repeated=_READING * cells / num_tiles, reserve_s=reserve_s,
            has_target=train.target is not None, world=parts.step.strategy.world, device=parts.step.device,
        )  # fmt: skip
        self.log = self._log_from(0)

    def _expected_seconds(self) -> float:
        """Estimated duration of a validation, from the time of some of its tiles."""
        scorer, tiles = self.parts.scorer(), self.parts.validation.image
        scorer.network.eval()
        some = tiles[: scorer.batch_size]
        for _ in range(2):  # the first pass selects kernels
            begin = time.perf_counter()
            scorer(some)
            seconds = time.perf_counter() - begin
        scorer.network.train()
        return seconds * len(tiles) / len(some)

    def resume(self) -> None:
        """Resume from checkpoints/last.pt, if there is one. Raises ValueError if it does not match the settings."""
        checkpoint = self.checkpoints.newest()
        if checkpoint is None:
            return
        update = self.parts.step.update
        self.first = restore_state(
            checkpoint.content, network=update.weights, optimizer=update.optimizer, average=update.average,
            scaler=update.scaler, where=str(checkpoint.path),
        )  # fmt: skip
        self.elapsed = float(checkpoint.content["extra"]["elapsed"])
        self.parts.paced.start_at(self.first, checkpoint.content["extra"].get("position", self.first))
        update.skipped.fill_(int(checkpoint.content["extra"]["skipped"]))
        self.log = self._log_from(self.first)
        self.log.losses = list(checkpoint.content["extra"]["losses"].to(self.parts.step.device).unbind(0))
        self.best = best_on_disk(self.out / CHECKPOINTS / BEST_PT, "auc")  # type: ignore[arg-type]
        path = self.out / METRICS_JSONL
        write_jsonl(path, [record for record in read_jsonl(path) if record.get("step", 0) <= self.first])

    def time_s(self) -> float:
        """Seconds of the run, those of earlier processes of it included."""
        return self.elapsed + self.clock.elapsed

    def run(self) -> Fitted:
        """Train until the last step, the target, the time limit or a stop request."""
        step = self.first
        if self.progress is not None:
            self.progress.start(self.parts.steps)
        try:
            with self.stop, self.saver:
                self.log.begin()
                self.feed.first = self.first
                for index, batch in enumerate(self.feed, start=self.first):
                    with self.clock.span("train"):
                        loss = self.parts.step(batch["image"], batch["label"][:, None, None, None], index)
                        self.log.losses.append(loss)
                    step = index + 1
                    if self._after(step):
                        break
        finally:
            if self.progress is not None:
                self.progress.stop()
        trained = self.clock.seconds.get("train", 0.0) + self.feed.wait_seconds
        return Fitted(
            status=self.status, step=step, best=self.best, last=self.last,
            samples_per_s=self._samples(self.first, step) / trained if trained else 0.0,
            wait_share=self.feed.wait_seconds / trained if trained else 0.0,
        )  # fmt: skip

    def _after(self, step: int) -> bool:
        """Log, validate and save after a step; returns whether it was the last."""
        parts, trained_s = self.parts, self.clock.seconds["train"] + self.feed.wait_seconds
        self.limit.after_step(step, trained_s)
        last = self.limit.over or parts.paced.done(step)
        if step % max(1, parts.steps // _LOGS) == 0 or last:
            self._write_log(step)
        saves = last or parts.paced.reaches(step, parts.validate_every)
        if last or (saves and self.limit.allows_validation(trained_s)):
            self._validate(step)
        if self.status == "finished":
            if self.stop.agreed() is not None:
                self.status = "interrupted"
            elif last and step < parts.steps:
                self.status = "time_up"
        ends = last or self.status != "finished"
        if saves or ends:
            with self.clock.span("checkpoint"):
                self.saver.save(self._state(step), self.checkpoints.write)
        return ends

    def _write_log(self, step: int) -> None:
        paced, skipped = self.parts.paced, int(self.parts.step.update.skipped)
        line = self.log.write(step, rate=paced(step - 1), time_s=self.time_s(), skipped=skipped)
        if not math.isfinite(line["loss"]):
            rate = self.parts.config.train.learning_rate
            raise ValueError(
                f"the loss is nan at step {step}: lower train.learning_rate (now {rate}) or set train.precision=fp32"
            )
        if self.progress is not None:
            metrics = {name: line[name] for name in ("loss", "samples_per_s", "wait_share")}
            self.progress.expect(paced.end(step), self.limit.left_s)
            self.progress.update(step, **metrics)

    def _validate(self, step: int) -> None:
        begin, train = time.perf_counter(), self.parts.config.train
        network = self.parts.validated
        training = network.training
        with self.clock.span("validate"):
            result = evaluate_tiles(replace(self.parts.scorer(), network=network.eval()), self.parts.validation)
        network.train(training)
        seconds, now = time.perf_counter() - begin, self.time_s()
        self._record({"kind": "validation", "step": step, "time_s": now, "seconds": seconds, **asdict(result)})
        self.log.pause(seconds)
        self.limit.validated(seconds)
        self.last = result
        if not self.best.value >= result.auc:
            self.best = Best(value=result.auc, step=step)
            with self.clock.span("checkpoint"):
                self.saver.save(self._model(network), partial(write_checkpoint, self.out / CHECKPOINTS / BEST_PT))
        if train.target is not None and result.auc >= train.target:
            self.status = "target_reached"

    def _model(self, network: nn.Module) -> dict[str, Any]:
        parts, best = self.parts, self.best
        return {
            "weights": network.state_dict(), "config": dump(parts.config), "variant": asdict(parts.variant),
            "step": best.step, "auc": best.value,
        }  # fmt: skip

    def _state(self, step: int) -> dict[str, Any]:
        update = self.parts.step.update
        extra = {
            "elapsed": self.time_s(), "position": self.parts.paced.position(step), "losses": self.log.pending(),
            "skipped": int(update.skipped),
        }  # fmt: skip
        return training_state(
            network=update.weights, optimizer=update.optimizer, step=step, average=update.average,
            scaler=update.scaler, extra=extra,
        )  # fmt: skip

    def _record(self, record: dict[str, Any]) -> None:
        append_jsonl(self.out / METRICS_JSONL, record)

    def _log_from(self, first: int) -> TrainLog:
        return TrainLog(self._record, lambda: self.feed.wait_seconds, self._samples, first=first)

    def _samples(self, first: int, last: int) -> int:
        return (last - first) * self.parts.config.train.batch_size
