"""Records of a Trainer's steps, in the form that the doctor reads for a watched script."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from hasten.lightning.timed import Steps
from hasten.study.script.records import ProcessRecord, as_record

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
