"""Whole programs in the manner of MONAI's integration tests, once with its classes and once with Hasten's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import monai.data
import monai.engines
import monai.handlers
import monai.inferers
import monai.losses
import monai.transforms as mt
import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader, create_test_image_3d
from monai.engines.utils import IterationEvents
from monai.handlers import CheckpointSaver, LrScheduleHandler, StatsHandler, ValidationHandler, from_engine
from monai.networks.nets import UNet
from monai.utils import set_determinism
from torch import Tensor, nn

import hasten
from hasten.evaluation.overlap import DiceMetric
from hasten.nets.losses import DiceLoss

pytestmark = pytest.mark.slow
BOTH = ["image", "label"]


class Classes(NamedTuple):
    CacheDataset: Any
    SupervisedTrainer: Any
    SupervisedEvaluator: Any
    SlidingWindowInferer: Any
    DiceLoss: Any
    MeanDice: Any


MONAIS = Classes(
    monai.data.CacheDataset, monai.engines.SupervisedTrainer, monai.engines.SupervisedEvaluator,
    monai.inferers.SlidingWindowInferer, monai.losses.DiceLoss, monai.handlers.MeanDice,
)  # fmt: skip
OURS = Classes(
    hasten.CacheDataset, hasten.SupervisedTrainer, hasten.SupervisedEvaluator, hasten.SlidingWindowInferer, DiceLoss,
    lambda **settings: monai.handlers.IgniteMetricHandler(DiceMetric(), **settings),
)  # fmt: skip


@pytest.fixture(autouse=True)
def determinism() -> Any:
    yield
    set_determinism(None)


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, str]]:
    results = []
    for number in range(6):
        image, label = create_test_image_3d(
            32, 32, 32, num_objs=4, rad_max=8, num_seg_classes=1, random_state=np.random.RandomState(number)
        )
        row = {"image": str(tmp_path / f"img{number}.nii.gz"), "label": str(tmp_path / f"seg{number}.nii.gz")}
        for key, values in zip(BOTH, (image, label), strict=True):
            nib.save(nib.Nifti1Image(values, np.eye(4)), row[key])
        results.append(row)
    return results


def small_unet() -> nn.Module:
    return UNet(3, 1, 1, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)


def reading() -> list[Any]:
    return [mt.LoadImaged(BOTH), mt.EnsureChannelFirstd(BOTH), mt.ScaleIntensityd(BOTH)]


def workflow(own: Classes, rows: list[dict[str, str]], folder: Path) -> tuple[list[float], dict[str, Tensor], set[str]]:
    """Losses of all epochs, the best metric first; the weights; names of the checkpoints."""
    set_determinism(0)
    crop = mt.RandCropByPosNegLabeld(BOTH, "label", (16, 16, 16), num_samples=2)
    chain = mt.Compose([*reading(), crop, mt.RandRotate90d(BOTH, prob=0.5, spatial_axes=(0, 2))])
    train = DataLoader(own.CacheDataset(rows[:4], chain, cache_rate=0.5, progress=False), batch_size=2, shuffle=True)
    validate = DataLoader(own.CacheDataset(rows[4:], mt.Compose(reading()), progress=False), batch_size=1)
    network = small_unet()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    post = mt.Compose([mt.Activationsd("pred", sigmoid=True), mt.AsDiscreted("pred", threshold=0.5)])
    evaluator = own.SupervisedEvaluator(
        device=torch.device("cpu"), val_data_loader=validate, network=network, postprocessing=post,
        inferer=own.SlidingWindowInferer(roi_size=(16, 16, 16), sw_batch_size=4, overlap=0.5),
        key_val_metric={"val_mean_dice": own.MeanDice(output_transform=from_engine(["pred", "label"]))},
        metric_cmp_fn=lambda current, best: current >= best,
        val_handlers=[
            StatsHandler(iteration_log=False), CheckpointSaver(str(folder), {"net": network}, save_key_metric=True),
        ],
    )  # fmt: skip
    seen: list[str] = []
    losses: list[float] = []
    trainer = own.SupervisedTrainer(
        device=torch.device("cpu"), max_epochs=3, train_data_loader=train, network=network, optimizer=optimizer,
        loss_function=own.DiceLoss(sigmoid=True), postprocessing=post, decollate=True, optim_set_to_none=True,
        to_kwargs={"memory_format": torch.preserve_format},
        train_handlers=[
            LrScheduleHandler(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1), print_lr=False),
            ValidationHandler(1, evaluator, epoch_level=True),
            StatsHandler(output_transform=from_engine("loss", first=True)),
            CheckpointSaver(str(folder), {"net": network, "opt": optimizer}, save_interval=2, epoch_level=True),
        ],
    )  # fmt: skip
    for event in IterationEvents:
        if event not in (IterationEvents.INNER_ITERATION_STARTED, IterationEvents.INNER_ITERATION_COMPLETED):
            trainer.add_event_handler(event, lambda _, event=event: seen.append(event.value))
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(float(engine.state.output[0]["loss"]))
    )
    trainer.run()
    assert trainer.get_stats("output")["output"][0]["loss"] == trainer.state.output[0]["loss"]
    best = evaluator.get_stats("metrics")["best_validation_metric"]
    events = {"forward_completed", "loss_completed", "backward_completed", "model_completed"}
    return [best, *losses], network.state_dict(), {path.name for path in folder.glob("*.pt")} | (events & set(seen))


def test_workflows(rows: list[dict[str, str]], tmp_path: Path) -> None:
    result, wanted = (
        workflow(own, rows, tmp_path / name) for own, name in ((OURS, "ours"), (MONAIS, "monais"))
    )  # fmt: skip
    np.testing.assert_allclose(result[0], wanted[0], rtol=1e-3, atol=1e-4)
    for name, weight in wanted[1].items():
        torch.testing.assert_close(result[1][name], weight, rtol=1e-2, atol=1e-3)
    assert {name for name in result[2] if ".pt" not in name} == {name for name in wanted[2] if ".pt" not in name}
    assert len(result[2]) == len(wanted[2])


def test_sliding_window(rows: list[dict[str, str]], tmp_path: Path) -> None:
    """Scores of a file by an engine, written as a file: shape, affine and values are MONAI's."""
    network = small_unet().eval()
    written = []
    for own in (OURS, MONAIS):
        folder = tmp_path / f"out{len(written)}"
        chain = mt.Compose([mt.LoadImaged(BOTH), mt.EnsureChannelFirstd(BOTH)])
        saver = mt.SaveImage(folder, separate_folder=False, print_log=False)
        inferer = own.SlidingWindowInferer((16, 12, 8), 3, overlap=0.25, mode="gaussian")

        def step(_: Engine, batch: dict[str, Tensor], inferer: Any = inferer, saver: Any = saver) -> None:
            with torch.no_grad():
                scores = inferer(batch["image"], network)
            for each in scores.sigmoid():
                saver(each)

        Engine(step).run(DataLoader(own.CacheDataset(rows[:2], chain, progress=False)))
        written.append(sorted(folder.glob("*.nii.gz")))
    assert len(written[0]) == 2
    for ours, monais in zip(*written, strict=True):
        one, other = nib.load(ours), nib.load(monais)
        assert ours.name == monais.name
        np.testing.assert_allclose(one.affine, other.affine)
        np.testing.assert_allclose(one.get_fdata(), other.get_fdata(), atol=1e-4)
