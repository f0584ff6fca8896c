"""The plain PyTorch training loop of MONAI's tutorials, which every rung below Hasten's own engine runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.ladder.record import Record, case_scores, class_masks
from hasten.observe.clock import process_start_seconds
from hasten.observe.env import cpu_has_bf16

if TYPE_CHECKING:
    from benchmarks.ladder.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    task: Task
    net: torch.nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    train: Iterable[dict[str, Any]]
    """One epoch of batches each time: image (B, C, ...) and label, class index (B, 1, ...) or masks (B, R, ...)."""
    validation: Iterable[dict[str, Any]]
    """One case a batch: image (1, C, ...), label, class index (1, 1, ...)."""
    roi: tuple[int, ...]
    """Window in the order of the arrays' axes."""
    device: torch.device
    amp: bool


def set_up(record: Record) -> torch.device:
    """Torch's threads, every generator's seed, and the device."""
    from monai.utils import set_determinism

    torch.set_num_threads(record.given.threads)
    set_determinism(record.given.seed)
    name = record.given.device
    # Not by the engine's own function, whose imports would go on the clock of arms that do without it.
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def may_autocast(task: Task, device: torch.device) -> bool:
    """Not on a CPU without bf16 instructions, nor on one where the coarsest features are under 3 voxels wide.

    Without the instructions, bf16 is emulated and many times slower than float32. In so coarse features torch 2.13's
    bf16 convolutions return uninitialised memory as their filters' gradients, which would say nothing about the way to
    train. Hasten keeps such layers in float32 by itself.
    """
    from hasten.nets.build import divisor

    if device.type == "cuda":
        return True
    coarsest = [side // by for side, by in zip(task.patch, divisor(task.network), strict=True)]
    return cpu_has_bf16() and min(coarsest[3 - task.spatial_dims :]) >= 3


def autocast(arm: Arm) -> torch.autocast:
    """fp16 on a GPU, as the tutorial has it, and bf16 on a CPU, which has no fp16 to gain by."""
    dtype = torch.float16 if arm.device.type == "cuda" else torch.bfloat16
    return torch.autocast(arm.device.type, dtype, enabled=arm.amp)


def run(arm: Arm, record: Record) -> None:
    """Train until the target, the time or the number of epochs is reached; `record` holds the outcome."""
    with record.watched():
        _run(arm, record)


def _run(arm: Arm, record: Record) -> None:
    scaler = torch.amp.GradScaler(arm.device.type, enabled=arm.amp and arm.device.type == "cuda")
    while record.stopped is None:
        conclude(arm, record, train_epoch(arm, record, scaler))


def conclude(arm: Arm, record: Record, passed: Pass) -> None:
    """An epoch's times into the record, a score where one is due, and whether to stop."""
    given = record.given
    record.seconds["wait"] += passed.wait
    record.seconds["train"] += passed.seconds - passed.wait
    if passed.whole:
        record.epochs.append(round(passed.seconds, 3))
    epoch = len(record.epochs)
    over = "max_seconds" if process_start_seconds() >= given.max_seconds else None
    if given.max_epochs is not None and epoch >= given.max_epochs:
        over = over or "max_epochs"
    if over is None and epoch % arm.task.peer.validate_every:
        return
    start = time.perf_counter()
    scores = validate(arm)
    record.seconds["validate"] += time.perf_counter() - start
    record.stopped = over  # set before the point is written, so that the file says it too
    record.validated(epoch, scores, **passed.figures())


@dataclass(kw_only=True, slots=True)
class Pass:
    """What one pass over the training cases took; `whole` unless the time ran out in it."""

    seconds: float = 0.0
    wait: float = 0.0
    samples: int = 0
    losses: list[float] = field(default_factory=list)
    whole: bool = True

    def figures(self) -> dict[str, float]:
        return {
            "loss": sum(self.losses) / max(1, len(self.losses)),
            "samples_per_s": self.samples / self.seconds,
            "wait_share": self.wait / self.seconds,
        }


def train_epoch(arm: Arm, record: Record, scaler: torch.amp.GradScaler) -> Pass:
    arm.net.train()
    passed = Pass()
    losses: list[torch.Tensor] = []
    start = asked = time.perf_counter()
    for batch in arm.train:
        passed.wait += time.perf_counter() - asked
        losses.append(train_step(arm, batch, scaler))
        record.steps += 1
        passed.samples += len(batch["image"])
        if process_start_seconds() >= record.given.max_seconds:
            passed.whole = False
            break
        asked = time.perf_counter()
    else:
        passed.wait += time.perf_counter() - asked  # a loader with worker processes also takes time to end them
    passed.losses = torch.stack(losses).tolist()  # on a GPU this waits for the epoch's steps, which end here
    passed.seconds = time.perf_counter() - start
    return passed


def train_step(arm: Arm, batch: dict[str, Any], scaler: torch.amp.GradScaler) -> torch.Tensor:
    image, label = batch["image"].to(arm.device), batch["label"].to(arm.device)
    arm.optimizer.zero_grad()
    with autocast(arm):
        loss = arm.loss(arm.net(image), label)
    scaler.scale(loss).backward()
    scaler.step(arm.optimizer)
    scaler.update()
    return loss.detach()


@torch.no_grad()
def validate(arm: Arm) -> list[list[float]]:
    """Dice per case and class, by MONAI's sliding window."""
    from monai.inferers import sliding_window_inference

    arm.net.eval()
    scores = []
    for batch in arm.validation:
        with autocast(arm):
            logits = sliding_window_inference(
                batch["image"].to(arm.device), arm.roi, 4, arm.net, overlap=arm.task.overlap
            )
        assert isinstance(logits, torch.Tensor)
        predicted = logits[0] > 0 if arm.task.regions else class_masks(logits[0].argmax(0), arm.task)
        scores.append(case_scores(predicted, class_masks(batch["label"][0, 0].to(arm.device), arm.task)))
    return scores
