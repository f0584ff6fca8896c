"""The plain PyTorch training loop of MONAI's tutorials, which both peers run with their own parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.peers.common import Record, since_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    net: torch.nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    train: Iterable[dict[str, Any]]
    """One epoch of batches: image (B, 1, x, y, z), label likewise."""
    validation: Iterable[dict[str, Any]]
    """One case a batch."""
    num_classes: int
    device: torch.device
    amp: bool


def pick_device(name: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def autocast(arm: Arm) -> torch.autocast:
    dtype = torch.float16 if arm.device.type == "cuda" else torch.bfloat16
    return torch.autocast(arm.device.type, dtype, enabled=arm.amp)


def run(arm: Arm, record: Record) -> None:
    """Train until the target, the time or the number of epochs is reached; `record` holds the outcome."""
    given = record.given
    scaler = torch.amp.GradScaler(arm.device.type, enabled=arm.amp and arm.device.type == "cuda")
    epoch = 0
    while record.stopped is None:
        passed = train_epoch(arm, record, scaler)
        if passed.whole:
            epoch += 1
            record.epochs.append(round(passed.seconds, 3))
        over = "max_seconds" if since_start() >= given.max_seconds else None
        if given.max_epochs is not None and epoch >= given.max_epochs:
            over = over or "max_epochs"
        if over is None and epoch % given.validate_every:
            continue
        start = time.perf_counter()
        scores = validate(arm, given.roi)
        record.seconds["validate"] += time.perf_counter() - start
        record.stopped = over  # set before the point is written, so that the file says it too
        best = max((point["dice"] or 0.0 for point in record.curve), default=-1.0)
        mean = record.validated(epoch, scores, **passed.figures())
        if given.weights is not None and mean > best:
            torch.save(arm.net.state_dict(), given.weights)
        if mean >= given.target:
            record.stopped = "target"
    record.write()


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
        if since_start() >= record.given.max_seconds:
            passed.whole = False
            break
        asked = time.perf_counter()
    else:
        passed.wait += time.perf_counter() - asked  # a loader with worker processes also takes time to end them
    passed.losses = torch.stack(losses).tolist()  # on a GPU this waits for the epoch's steps, which end here
    passed.seconds = time.perf_counter() - start
    record.seconds["wait"] += passed.wait
    record.seconds["train"] += passed.seconds - passed.wait
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
def validate(arm: Arm, roi: tuple[int, int, int]) -> list[list[float]]:
    """Dice per case and foreground class, by MONAI's sliding window (`roi` is (D, H, W)) and MONAI's metric."""
    from monai.inferers import sliding_window_inference
    from monai.metrics import DiceMetric

    arm.net.eval()
    metric = DiceMetric(include_background=False, reduction="none", num_classes=arm.num_classes)
    for batch in arm.validation:
        with autocast(arm):
            logits = sliding_window_inference(batch["image"].to(arm.device), roi[::-1], 4, arm.net)
        metric(logits.argmax(1, keepdim=True), batch["label"].to(arm.device))
    return metric.get_buffer().tolist()
