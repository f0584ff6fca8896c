"""A Lightning program whose batches, validation cases, records and verdict come from Hasten; all else is Lightning's.

    python lightning_script.py SOURCE [EPOCHS [OUT [section.field=value ...]]]

Gone on with, in the middle of an epoch too, from OUT/checkpoints/last.ckpt if that is there. Follow it from another
terminal by `hasten watch OUT`; look at OUT/report.html in the end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from monai.metrics import DiceMetric
from monai.networks.nets import UNet

from hasten import SlidingWindowInferer
from hasten.lightning import HastenCallback, HastenDataModule
from hasten.nets.losses import DiceCELoss


class Segmentation(pl.LightningModule):
    def __init__(self, num_channels: int, num_classes: int, patch: tuple[int, int, int], rate: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = UNet(3, num_channels, num_classes, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
        self.loss = DiceCELoss(to_onehot_y=True, softmax=True)
        self.inferer = SlidingWindowInferer(patch, sw_batch_size=4, overlap=0.5)
        self.dice = DiceMetric(include_background=False, num_classes=num_classes)

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        loss = self.loss(self.network(batch["image"]), batch["label"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        scores = self.inferer(batch["image"], self.network)
        self.dice(scores.argmax(1, keepdim=True), batch["label"])

    def on_validation_epoch_end(self) -> None:
        self.log("val_dice", self.dice.aggregate())  # of all ranks
        self.dice.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate, fused=True)


def main(source: str, epochs: int = 20, out: str = "runs/lightning", *settings: str) -> float:
    """Train on a 3-D data set; return the best mean Dice of the cases held out."""
    data = HastenDataModule(source, settings)
    patch = data.planned.config.sample.patch
    assert patch is not None
    model = Segmentation(data.num_channels, data.num_classes, patch)
    checkpoints = Path(out) / "checkpoints"
    saving = ModelCheckpoint(checkpoints, monitor="val_dice", mode="max", save_last=True)
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[HastenCallback(out), saving], logger=False)
    last = checkpoints / "last.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=str(last) if last.exists() else None, weights_only=False)
    return float(saving.best_model_score or 0.0)


if __name__ == "__main__":
    words = sys.argv[1:]
    dice = main(words[0], *(kind(word) for kind, word in zip((int, str), words[1:3], strict=False)), *words[3:])
    print(f"best Dice {dice:.3f}")
