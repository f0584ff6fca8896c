"""A small module, and Trainers that write nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hasten.phantoms.organs import write_phantoms

TINY = (
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "sample.patch=[16, 16, 16]",
    "sample.batch_size=2",
    "network.channels=[4, 8]",
    "network.strides=[[2, 2, 2]]",
    "data.split.fraction=0.4",
)


def phantoms(folder: Path, num_cases: int = 10) -> Path:
    return write_phantoms(folder, num_cases=num_cases, shape=(16, 24, 24), spacing=(1.0, 1.0, 1.0))


class Small(pl.LightningModule):
    """One convolution; keeps a sum of every batch that it was trained on, and whose cases it was validated on."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.network = nn.Conv3d(1, 2, 3, padding=1)
        self.seen: list[float] = []
        self.validated: list[str] = []
        self.stop_at = stop_at

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        self.seen.append(float(batch["image"].double().sum() + 1e3 * batch["label"].double().sum()))
        if self.stop_at is not None and len(self.seen) == self.stop_at:
            raise RuntimeError("the cable was pulled")
        return cross_entropy(self.network(batch["image"]), batch["label"][:, 0].long())

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        self.validated += batch["id"]
        prediction = self.network(batch["image"]).argmax(1, keepdim=True)
        both, either = (prediction * batch["label"]).sum(), prediction.sum() + batch["label"].sum()
        self.log("val_dice", 2 * both / either.clamp(min=1), batch_size=1, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(**options: Any) -> pl.Trainer:
    usual: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(**{**usual, **options})
