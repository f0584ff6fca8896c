"""Times of the parts of a Trainer's steps, measured by wrapping its profiler, and their record for the doctor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from hasten.doctor.script.records import ProcessRecord, as_record

MAX_RECENT_STEPS = 2000
"""Number of last steps that are kept for the analysis."""
WATCH_EVERY = 32
"""Interval, in steps, at which a GPU, which runs asynchronously, is synchronized after each part of the step."""

_PARTS = {
    "train_dataloader_next": "wait",
    "batch_to_device": "host_to_device",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "save_checkpoint": "checkpoint",
}
"""Suffixes of a Trainer's profiler actions, and the corresponding parts of `hasten.doctor.time_split`."""


@dataclass(slots=True)
class Steps:
    """Measured times: each moment belongs to the innermost open part, or to `over` if that is set."""

    wait_for_device: Callable[[], Any] | None = None
    """Synchronizes the device; None on a CPU."""
    over: str = ""
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds of each part since the first step."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_STEPS))
    count: int = 0
    saves: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints: the number of steps before each, and its seconds."""
    is_watched: bool = False
    _open: list[str] = field(default_factory=list)
    _parts: dict[str, float] = field(default_factory=dict)
    _at: float = 0.0
    _saving: float = 0.0

    def mark(self) -> None:
        """Add the time since the last mark to the current part."""
        if self.is_watched and self.wait_for_device is not None:
            self.wait_for_device()
        now = time.perf_counter()
        part = self.over or (self._open[-1] if self._open else "overhead")
        self._parts[part] = self._parts.get(part, 0.0) + now - self._at
        self._at = now

    def enter(self, part: str) -> None:
        self.mark()
        self._open.append(part)
        self._saving = self._at

    def leave(self) -> None:
        self.mark()
        if self._open and self._open.pop() == "checkpoint":
            self.saves.append({"step": self.count, "seconds": self._at - self._saving})

    def waited(self) -> float:
        """Seconds that the current step has waited for its batch."""
        return self._parts.get("wait", 0.0)

    def cover(self, part: str) -> None:
        """Attribute all time to this part, until called with ""."""
        self.mark()
        self.over = part

    def begin(self) -> None:
        """Start timing; earlier time belongs to no step."""
        self._open, self._parts, self._at = [], {}, time.perf_counter()

    def end(self) -> None:
        """End a step, which includes the wait for its batch and the time since the step before."""
        parts = self.close()
        self.recent.append({"seconds": sum(parts.values()), "parts": parts, "synced": self.is_watched})
        self.count += 1
        self.is_watched = self.wait_for_device is not None and self.count % WATCH_EVERY == WATCH_EVERY - 1

    def close(self) -> dict[str, float]:
        """Seconds by part since the last step ended, which count in the totals from now on."""
        self.mark()
        self._open.clear()
        parts, self._parts = self._parts, {}
        for part, seconds in parts.items():
            self.totals[part] = self.totals.get(part, 0.0) + seconds
        return parts


class TimedProfiler:
    """Wraps the Trainer's own profiler and reports the actions that are parts of a step to `steps`."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self.inner, self.steps = inner, steps
        self._known: dict[str, str] = {}

    def start(self, action: str) -> None:
        part = self._known.get(action)
        if part is None:
            part = self._known[action] = part_of(action)
        if part:
            self.steps.enter(part)
        self.inner.start(action)

    def stop(self, action: str) -> None:
        self.inner.stop(action)
        if self._known.get(action):
            self.steps.leave()

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


def part_of(action: str) -> str:
    """The part that an action is, such as "forward" for "[Strategy]DDPStrategy.training_step"; "" for none."""
    owner, _, name = action.rpartition(".")
    if name in ("training_step", "backward", "batch_to_device") and not owner.startswith("[Strategy]"):
        return ""
    if name == "optimizer_step" and owner.startswith(("[Callback]", "[Strategy]")):
        return ""
    return _PARTS.get(name, "")


_HEAVY = ("PyTorchProfiler", "AdvancedProfiler", "XLAProfiler")
"""Profilers of Lightning that record every operation."""


class TrainerStats:
    """Statistics besides the times, collected during the training."""

    def __init__(self) -> None:
        self.validations: list[dict[str, Any]] = []
        self.epoch_starts: list[float] = []
        """Seconds until the first batch of each epoch was ready."""
        self.shapes: dict[str, int] = {}
        self.anomaly_steps = 0
        self.samples = 0

    def batch(self, batch: Any) -> None:
        """Count the shape and the samples of the first image, or else of the first tensor."""
        tensors = [value for value in tree_leaves(batch) if isinstance(value, Tensor) and value.ndim]
        image = next((value for value in tensors if value.ndim >= 4), None)
        if image is not None:
            shape = "x".join(str(size) for size in image.shape)
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
        self.samples += len(tensors[0] if image is None else image) if tensors else 0
        self.anomaly_steps += torch.is_anomaly_enabled()


def record_of(trainer: Any, module: nn.Module, steps: Steps, stats: TrainerStats, profiler: Any) -> ProcessRecord:
    """One rank's record. Steps count from the first of the recent ones."""
    first, num_steps = steps.count - len(steps.recent), len(steps.recent)
    device = trainer.strategy.root_device.type
    modes = {"anomaly": stats.anomaly_steps, "profiler": steps.count if type(profiler).__name__ in _HEAVY else 0}
    return as_record(
        {
            "rank": trainer.global_rank,
            "world": trainer.world_size,
            "devices": {device: steps.count},
            "cuda_devices": torch.cuda.device_count(),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
            "ended": "exit",
            "steps": list(steps.recent),
            "loaders": _loaders(trainer.train_dataloader, steps, stats, num_steps),
            "convolutions": any(isinstance(each, nn.Conv2d | nn.Conv3d) for each in module.modules()),
            "shapes": stats.shapes,
            "modes": {name: {"steps": min(count, num_steps)} for name, count in modes.items() if count},
            "validations": _since(stats.validations, first),
            "saves": _since(steps.saves, first),
            "copies": _copies(trainer.train_dataloader, steps),
        }
    )


def _since(events: Iterable[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    return [{**each, "step": each["step"] - first, "site": ""} for each in events if each["step"] >= first]


def _loaders(loaders: Any, steps: Steps, stats: TrainerStats, num_steps: int) -> list[dict[str, Any]]:
    rows = []
    for loader in tree_leaves(loaders):
        plain = isinstance(loader, DataLoader)
        names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "batch_size")
        settings = {name: getattr(loader, name, None) if plain else None for name in names}
        waited = steps.totals.get("wait", 0.0) - sum(stats.epoch_starts)
        facts = {
            "site": "train_dataloader",
            "type": f"{type(loader).__module__}.{type(loader).__qualname__}",
            # Advice about torch's DataLoader does not apply to other loaders.
            "own_thread": not plain or type(loader).__iter__ is not DataLoader.__iter__,
            "batches": max(0, steps.count - len(stats.epoch_starts)),
            "wait_s": max(0.0, waited),
            "starts": stats.epoch_starts,
            "items_s": 0.0,
            "collate_s": 0.0,
            "fetches": 0,
            "training": num_steps,
        }
        rows.append(facts | settings)
    return rows


def _copies(loaders: Any, steps: Steps) -> dict[str, Any]:
    """Whether memory was pinned is taken from the loader's pin_memory."""
    pinned = all(loader.pin_memory for loader in tree_leaves(loaders) if isinstance(loader, DataLoader))
    seconds = steps.totals.get("host_to_device", 0.0)
    return {"count": steps.count, "pinned": steps.count if pinned else 0, "seconds": seconds}
