"""Imitates the workflow example for 3-D training with engines and handlers: a trainer with post-processing and
a key metric, an evaluator called from the trainer, statistics, event files and checkpoints from handlers."""
# verdict: validation

import logging
import sys

import nibabel as nib
import numpy as np
import torch
from common import device, folder
from ignite.metrics import Accuracy
from monai.data import DataLoader, Dataset, create_test_image_3d
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import (
    CheckpointSaver,
    LrScheduleHandler,
    MeanDice,
    StatsHandler,
    TensorBoardStatsHandler,
    ValidationHandler,
    from_engine,
)
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    EnsureChannelFirstd,
    KeepLargestConnectedComponentd,
    LoadImaged,
    RandCropByPosNegLabeld,
    RandRotate90d,
    ScaleIntensityd,
)

logging.basicConfig(stream=sys.stdout, level=logging.INFO)
logging.getLogger("ignite").setLevel(logging.WARNING)
keys = ["image", "label"]
tempdir, logdir = folder("workflow"), str(folder("workflow-runs"))
files = []
for i in range(16):
    im, seg = create_test_image_3d(112, 112, 96, num_seg_classes=1, random_state=np.random.RandomState(i))
    for key, array in zip(keys, (im, seg), strict=True):
        nib.save(nib.Nifti1Image(array.astype(np.float32), np.eye(4)), tempdir / f"{key}{i:d}.nii.gz")
    files.append({key: str(tempdir / f"{key}{i:d}.nii.gz") for key in keys})
train_files, val_files = files[:12], files[12:]

load = [LoadImaged(keys=keys), EnsureChannelFirstd(keys=keys), ScaleIntensityd(keys=keys)]
train_transforms = Compose(
    [
        *load,
        RandCropByPosNegLabeld(
            keys=keys, label_key="label", spatial_size=[48, 48, 48], pos=1, neg=1, num_samples=2
        ),
        RandRotate90d(keys=keys, prob=0.5, spatial_axes=[0, 2]),
    ]
)  # fmt: skip
val_transforms = Compose(load)
train_ds = Dataset(data=train_files, transform=train_transforms)
# label: no-workers both sure; uncached-items both sure; heavy-items both likely; small-batch gpu likely
train_loader = DataLoader(train_ds, batch_size=2, shuffle=True)
val_ds = Dataset(data=val_files, transform=val_transforms)
# label: no-workers both likely; uncached-items both likely
val_loader = DataLoader(val_ds, batch_size=1)

# label: conv-bias-before-norm both likely; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
net = UNet(
    spatial_dims=3, in_channels=1, out_channels=1, channels=(8, 16, 32, 64), strides=(2, 2, 2), num_res_units=2,
    norm="batch",
).to(device)  # fmt: skip
loss = DiceLoss(sigmoid=True)
opt = torch.optim.Adam(net.parameters(), 1e-3)
lr_scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.95)

post_transforms = Compose(
    [
        Activationsd(keys="pred", sigmoid=True),
        AsDiscreted(keys="pred", threshold=0.5),
        KeepLargestConnectedComponentd(keys="pred", applied_labels=[1]),
    ]
)
evaluator = SupervisedEvaluator(
    device=device,
    val_data_loader=val_loader,
    network=net,
    # label: metadata-tensor both maybe
    inferer=SlidingWindowInferer(roi_size=(64, 64, 64), sw_batch_size=4, overlap=0.5),
    postprocessing=post_transforms,
    key_val_metric={"val_mean_dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    val_handlers=[
        StatsHandler(iteration_log=False),
        TensorBoardStatsHandler(log_dir=logdir, iteration_log=False),
        CheckpointSaver(save_dir=logdir, save_dict={"net": net}, save_key_metric=True),
    ],
)
train_handlers = [
    LrScheduleHandler(lr_scheduler=lr_scheduler, print_lr=True),
    # label: validation-share both sure
    ValidationHandler(validator=evaluator, interval=1, epoch_level=True),
    # label: host-read gpu likely
    StatsHandler(tag_name="train_loss", output_transform=from_engine(["loss"], first=True)),
    # label: host-read gpu maybe
    TensorBoardStatsHandler(log_dir=logdir, tag_name="train_loss", output_transform=from_engine(["loss"], first=True)),
    # label: checkpoint-stall both likely
    CheckpointSaver(save_dir=logdir, save_dict={"net": net, "opt": opt}, save_interval=2, epoch_level=False),
]
# label: no-autocast gpu sure; metadata-tensor both likely
trainer = SupervisedTrainer(
    device=device,
    max_epochs=20,
    train_data_loader=train_loader,
    network=net,
    optimizer=opt,
    loss_function=loss,
    inferer=SimpleInferer(),
    # label: host-metric both sure
    postprocessing=post_transforms,
    key_train_metric={"train_acc": Accuracy(output_transform=from_engine(["pred", "label"]))},
    train_handlers=train_handlers,
    amp=False,
)
trainer.run()
