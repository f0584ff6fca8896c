"""MONAI's fast training under Lightning's Trainer, with its data as MONAI's Lightning tutorial has them.

Project-MONAI/tutorials, 3d_segmentation/spleen_segmentation_3d_lightning.ipynb: a LightningModule, CacheDatasets of
training and validation cases filled by threads, torch's DataLoader with worker processes, 2 cases of 4 crops in a
batch, a sliding window over whole cases. From Lightning's guide to speed (advanced/speed): mixed precision (16-mixed on
a GPU, bf16-mixed on a CPU that has bf16), workers that persist, pinned memory, cuDNN's autotuner.
Not the tutorial's: loss and optimizer are those of the fast rung (the tutorial's Dice and Adam at 1e-4 reach a target
later); crops come from precomputed indices and the chain is the ladder's; the Trainer neither logs nor writes, as the
record does; the score is taken by the function that all arms share, at an epoch's end, in the place of Lightning's
validation loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.record import Record, arm_arguments
from hasten.observe.clock import process_start_seconds

if TYPE_CHECKING:
    from benchmarks.ladder.loop import Arm


def main(argv: Sequence[str] | None = None) -> None:
    record = Record(arm="lightning", given=arm_arguments(str(__doc__).splitlines()[0], argv), notes=str(__doc__))
    try:
        import lightning.pytorch as pl
    except ModuleNotFoundError:
        raise ValueError("--peer lightning: needs lightning; pip install 'hasten[peers]'") from None
    _train(record, pl)


def _train(record: Record, pl: Any) -> None:
    from benchmarks.ladder.algorithms import fast_loss, fast_optimizer
    from benchmarks.ladder.chain import network_of, turned
    from benchmarks.ladder.loop import Arm, may_autocast, set_up

    given, task = record.given, record.given.task
    device = set_up(record)
    on_gpu = device.type == "cuda"
    record.seconds["import"] = process_start_seconds()
    start = time.perf_counter()
    loaders = _loaders(record, pin=on_gpu)
    record.seconds["cache"] = time.perf_counter() - start
    amp = may_autocast(task, device)
    net = network_of(task, xyz=True)
    arm = Arm(
        task=task,
        net=net,
        loss=fast_loss(task),
        optimizer=fast_optimizer(task, net),
        train=loaders["train"],
        validation=loaders["validation"],
        roi=turned(task.roi, task.spatial_dims),
        device=device,
        amp=amp,
    )
    precision = ("16-mixed" if on_gpu else "bf16-mixed") if amp else "32-true"
    record.settled["precision"] = precision
    trainer = pl.Trainer(
        max_epochs=-1 if given.max_epochs is None else given.max_epochs,
        accelerator="gpu" if on_gpu else "cpu",
        devices=[device.index or 0] if on_gpu else 1,
        precision=precision,
        benchmark=on_gpu,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    with record.watched():
        trainer.fit(_module(arm, record, pl), arm.train)
    record.write()


def _loaders(record: Record, *, pin: bool) -> dict[str, Any]:
    from monai.data import CacheDataset, DataLoader
    from monai.transforms import Compose

    from benchmarks.ladder.chain import RegionMasks, deterministic, random_crop, rows_of

    given, task = record.given, record.given.task
    masks = [RegionMasks(task)] if task.regions else []
    chains = {
        "train": Compose([*deterministic(task, pad=True, indices=True), *masks, random_crop(task)]),
        "validation": Compose(deterministic(task)),
    }
    loaders = {}
    for part, cases in (("train", task.train), ("validation", task.validation)):
        data = CacheDataset(rows_of(cases), chains[part], num_workers=given.workers, progress=False)
        batch = {"batch_size": task.peer.cases, "shuffle": True} if part == "train" else {"batch_size": 1}
        loaders[part] = DataLoader(
            data, num_workers=given.workers, persistent_workers=given.workers > 0, pin_memory=pin, **batch
        )
    return loaders


def _module(arm: Arm, record: Record, pl: Any) -> Any:
    """The LightningModule; its base is known only where Lightning is installed."""

    class Segmentation(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = arm.net
            self.epochs = _Epochs(arm, record)

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
            return arm.loss(self.net(batch["image"]), batch["label"])

        def configure_optimizers(self) -> Any:
            return arm.optimizer

        def on_train_epoch_start(self) -> None:
            self.epochs.begin()

        def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
            self.epochs.given(len(batch["image"]))

        def on_train_batch_end(self, outputs: Any, batch: dict[str, Any], batch_idx: int) -> None:
            is_last = batch_idx + 1 == self.trainer.num_training_batches
            self.trainer.should_stop = self.epochs.stepped(outputs["loss"], is_last=is_last)

        def on_train_epoch_end(self) -> None:
            self.epochs.end()
            self.trainer.should_stop = record.stopped is not None

    return Segmentation()


class _Epochs:
    """What the ladder's own loop does around its steps: times, the score, and when to stop."""

    def __init__(self, arm: Arm, record: Record) -> None:
        self.arm, self.record = arm, record

    def begin(self) -> None:
        from benchmarks.ladder.loop import Pass

        self.arm.net.train()
        self.passed = Pass()
        self.begun = self.asked = time.perf_counter()

    def given(self, samples: int) -> None:
        """The batch is there, and on the device."""
        self.passed.wait += time.perf_counter() - self.asked
        self.passed.samples += samples

    def stepped(self, loss: Any, *, is_last: bool) -> bool:
        """Whether the seconds are over in the middle of an epoch."""
        self.passed.losses.append(loss)
        self.record.steps += 1
        if not is_last and process_start_seconds() >= self.record.given.max_seconds:
            self.passed.whole = False
        self.asked = time.perf_counter()
        return not self.passed.whole

    def end(self) -> None:
        """Score, where one is due, and say in the record whether to stop."""
        import torch

        from benchmarks.ladder.loop import conclude

        self.passed.losses = torch.stack([torch.as_tensor(loss) for loss in self.passed.losses]).tolist()
        self.passed.seconds = time.perf_counter() - self.begun
        conclude(self.arm, self.record, self.passed)


if __name__ == "__main__":
    main()
