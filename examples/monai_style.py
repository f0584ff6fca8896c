"""A MONAI training program, with its trainer, evaluator, cache and loader taken from Hasten; all else is MONAI's own.

    python monai_style.py SOURCE [EPOCHS [OUT]]

SOURCE: a folder as the Medical Segmentation Decathlon has them, with a dataset.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from monai.data import list_data_collate, load_decathlon_datalist
from monai.handlers import (
    CheckpointSaver,
    LrScheduleHandler,
    MeanDice,
    StatsHandler,
    ValidationHandler,
    from_engine,
)
from monai.inferers import SlidingWindowInferer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscreted,
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    NormalizeIntensityd,
    RandCropByPosNegLabeld,
    RandFlipd,
)

from hasten import CacheDataset, SupervisedEvaluator, SupervisedTrainer, ThreadDataLoader

KEYS = ["image", "label"]


def main(source: str, epochs: int = 20, out: str = "runs/monai_style", patch: int = 32) -> float:
    """Train on a 3-D data set of two classes; return the best mean Dice of the cases held out."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = load_decathlon_datalist(str(Path(source) / "dataset.json"), True, "training")
    held_out = max(1, len(rows) // 5)
    size = (patch, patch, patch)
    prepare = [LoadImaged(KEYS), EnsureChannelFirstd(KEYS), NormalizeIntensityd("image")]
    crops = [RandCropByPosNegLabeld(KEYS, "label", size, num_samples=2), RandFlipd(KEYS, prob=0.5, spatial_axis=0)]
    training = CacheDataset(rows[held_out:], Compose([*prepare, *crops]), progress=False)
    validation = CacheDataset(rows[:held_out], Compose(prepare), progress=False)

    network = UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=epochs, power=0.9)
    evaluator = SupervisedEvaluator(
        device=device,
        val_data_loader=ThreadDataLoader(validation, collate_fn=list_data_collate),
        network=network,
        inferer=SlidingWindowInferer(size, sw_batch_size=4, overlap=0.5),
        postprocessing=AsDiscreted(["pred", "label"], argmax=[True, False], to_onehot=2),
        key_val_metric={
            "val_mean_dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))
        },
        val_handlers=[
            StatsHandler(output_transform=lambda output: None),
            CheckpointSaver(out, {"net": network}, save_key_metric=True, key_metric_filename="best.pt"),
        ],
        amp=True,
    )
    trainer = SupervisedTrainer(
        device=device,
        max_epochs=epochs,
        train_data_loader=ThreadDataLoader(training, batch_size=2, shuffle=True, collate_fn=list_data_collate),
        network=network,
        optimizer=optimizer,
        loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
        train_handlers=[
            LrScheduleHandler(schedule, print_lr=False),
            ValidationHandler(interval=max(1, epochs // 5), validator=evaluator),
            StatsHandler(tag_name="train_loss", output_transform=from_engine(["loss"], first=True)),
        ],
        amp=True,
    )
    trainer.run()
    return float(evaluator.state.best_metric)


if __name__ == "__main__":
    dice = main(sys.argv[1], *(kind(word) for kind, word in zip((int, str), sys.argv[2:], strict=False)))
    print(f"best Dice {dice:.3f}")
