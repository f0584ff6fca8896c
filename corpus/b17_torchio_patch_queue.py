"""Imitates the patch-based tutorial of a medical augmentation library turned into a script: subjects from NIfTI files,
a queue of patches, spatial and intensity augmentation, dense inference by a grid sampler and an aggregator."""
# verdict: input|compute

import enum
import random

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
import torchio as tio
from common import UNet, device, folder, volume
from tqdm import tqdm


class Action(enum.Enum):
    TRAIN = "Training"
    VALIDATE = "Validation"


seed, patch_size, samples_per_volume, max_queue_length = 42, 32, 4, 16
training_batch_size, validation_batch_size, num_epochs, num_workers = 4, 2, 12, 0
random.seed(seed)
torch.manual_seed(seed)


def make_subjects(count=14, shape=(64, 64, 56)):
    path, generator, subjects = folder("brains"), np.random.default_rng(seed), []
    for n in range(count):
        image, label = volume(generator, shape)
        nib.save(nib.Nifti1Image(100 * image + 300, np.diag([1.0, 1.0, 1.3, 1.0])), path / f"t1_{n:02d}.nii.gz")
        nib.save(nib.Nifti1Image(label, np.diag([1.0, 1.0, 1.3, 1.0])), path / f"seg_{n:02d}.nii.gz")
        mri, brain = tio.ScalarImage(path / f"t1_{n:02d}.nii.gz"), tio.LabelMap(path / f"seg_{n:02d}.nii.gz")
        subjects.append(tio.Subject(mri=mri, brain=brain))
    return subjects


training_transform = tio.Compose(
    [
        tio.ToCanonical(),
        tio.Resample(1),
        tio.CropOrPad((64, 64, 64)),
        tio.ZNormalization(masking_method=tio.ZNormalization.mean),
        tio.RandomFlip(axes=(0,)),
        tio.OneOf({tio.RandomAffine(): 0.8, tio.RandomElasticDeformation(): 0.2}),
        tio.RandomBiasField(p=0.25),
        tio.RandomNoise(p=0.25),
    ]
)
validation_transform = tio.Compose(
    [
        tio.ToCanonical(),
        tio.Resample(1),
        tio.CropOrPad((64, 64, 64)),
        tio.ZNormalization(masking_method=tio.ZNormalization.mean),
    ]
)

subjects = make_subjects()
training_set = tio.SubjectsDataset(subjects[:10], transform=training_transform)
validation_set = tio.SubjectsDataset(subjects[10:], transform=validation_transform)
sampler = tio.data.UniformSampler(patch_size)
# label: no-workers both sure; heavy-items both sure; uncached-items both likely
patches_training_set = tio.Queue(
    training_set, max_queue_length, samples_per_volume, sampler, num_workers=num_workers, shuffle_subjects=True
)
patches_validation_set = tio.Queue(
    validation_set, max_queue_length, samples_per_volume, sampler, num_workers=num_workers, shuffle_subjects=False,
    shuffle_patches=False,
)  # fmt: skip
# label: unpinned-memory gpu maybe; small-batch gpu likely
training_loader = tio.SubjectsLoader(patches_training_set, batch_size=training_batch_size)
# label: no-workers both likely; uncached-items both likely
validation_loader = tio.SubjectsLoader(patches_validation_set, batch_size=validation_batch_size)

# label: conv-bias-before-norm both likely; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
model = UNet(kind=3, taken=1, given=2, widths=(8, 16, 32), bias=True, norm=torch.nn.InstanceNorm3d).to(device)
optimizer = torch.optim.AdamW(model.parameters())


def get_dice_loss(probabilities, targets, epsilon=1e-9):
    dims = (2, 3, 4)
    tp = (probabilities * targets).sum(dim=dims)
    fp = (probabilities * (1 - targets)).sum(dim=dims)
    fn = ((1 - probabilities) * targets).sum(dim=dims)
    return (1 - (2 * tp + epsilon) / (2 * tp + fp + fn + epsilon)).mean()


def prepare_batch(batch):
    inputs = batch["mri"][tio.DATA].to(device)
    foreground = batch["brain"][tio.DATA].to(device)
    return inputs, torch.cat([1 - foreground, foreground], dim=1).float()


def run_epoch(epoch, action, loader):
    is_training = action == Action.TRAIN
    epoch_losses = []
    model.train(is_training)
    for batch in tqdm(loader, desc=f"{action.value} {epoch}"):
        inputs, targets = prepare_batch(batch)
        optimizer.zero_grad()
        with torch.set_grad_enabled(is_training):
            logits = model(inputs)  # label: no-autocast gpu sure
            loss = get_dice_loss(F.softmax(logits, dim=1), targets)
            if is_training:
                loss.backward()
                optimizer.step()
            epoch_losses.append(loss.item())  # label: host-read gpu likely
    print(f"{action.value} {epoch} mean loss: {np.mean(epoch_losses):0.3f}")


run_epoch(0, Action.VALIDATE, validation_loader)
for epoch in range(1, num_epochs + 1):
    run_epoch(epoch, Action.TRAIN, training_loader)
    run_epoch(epoch, Action.VALIDATE, validation_loader)  # label: validation-share both maybe

grid = tio.GridSampler(validation_set[0], patch_size, 8)
aggregator = tio.GridAggregator(grid)
model.eval()
with torch.no_grad():
    for patches in tio.SubjectsLoader(grid, batch_size=validation_batch_size):
        labels = model(patches["mri"][tio.DATA].to(device)).argmax(dim=1, keepdim=True)
        aggregator.add_batch(labels, patches[tio.LOCATION])
print(aggregator.get_output_tensor().float().mean())
