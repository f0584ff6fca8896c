"""nnU-Net's trainer with Hasten's batches. nnU-Net finds it by nnUNet_extTrainer; `hasten nnunet` sets that.

Plans, network, loss, optimizer, schedule, checkpoints, validation and prediction are nnU-Net's own.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import autocast

from hasten.nnunet.batches import Batches, make_batches, placed, read_cases


class nnUNetTrainerHasten(nnUNetTrainer):  # nnU-Net's way to name trainers
    """`nnUNetv2_train DATASET CONFIGURATION FOLD -tr nnUNetTrainerHasten`."""

    def get_dataloaders(self) -> tuple[Any, Any]:
        """Batches from cases that are read once; nnU-Net's own loaders for what Hasten has no part for."""
        rotation, dummy_2d, _, mirror_axes = self.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        reason = self._why_not(dummy_2d)
        if reason:
            self.print_to_log_file(f"Hasten: {reason}; nnU-Net's own data loaders take its place")
            return super().get_dataloaders()
        self.dataset_class: Any = self.dataset_class or infer_dataset_class(self.preprocessed_dataset_folder)
        size = self.batch_size
        options: dict[str, Any] = {
            "batch_size": size, "forced": size - round(size * (1 - self.oversample_foreground_percent)),
            "device": self.device,
        }  # fmt: skip
        scales, regions = self._get_deep_supervision_scales(), []
        if self.label_manager.has_regions:
            regions = [
                [each] if isinstance(each, int) else list(each) for each in self.label_manager.foreground_regions
            ]
        loaders = []
        seed = int(os.environ.get("HASTEN_SEED", "0")) * 1000 + 2 * self.local_rank
        for augmented, dataset in zip((True, False), self.get_tr_and_val_datasets(), strict=True):
            program = make_batches(
                placed(read_cases(dataset), self.device), tuple(self.configuration_manager.patch_size),
                seed=seed + (not augmented), augmented=augmented, rotate_deg=math.degrees(max(rotation)),
                mirror_axes=mirror_axes or (), **options,
            )  # fmt: skip
            steps = self.num_iterations_per_epoch if augmented else self.num_val_iterations_per_epoch
            first = self.current_epoch * steps
            loaders.append(Batches(program=program, first=first, scales=scales, regions=regions))
        return loaders[0], loaders[1]

    def _why_not(self, dummy_2d: bool) -> str:
        """What keeps Hasten from making this training's batches; "" where nothing does."""
        if type(self).get_training_transforms is not nnUNetTrainer.get_training_transforms:
            return "the trainer has an augmentation of its own"
        if len(self.configuration_manager.patch_size) != 3:
            return "a 2d configuration"
        if dummy_2d:
            return "patches so flat that nnU-Net augments them slice by slice"
        if self.is_cascaded:
            return "the second stage of a cascade"
        if self.label_manager.has_ignore_label:
            return "an ignore label"
        if any(self.configuration_manager.use_mask_for_norm):
            return "normalisation within a mask"
        return ""

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """nnU-Net's step, which leaves the loss on the device: reading it would wait for the GPU in every step."""
        if not isinstance(self.dataloader_train, Batches):
            return super().train_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.device.type, enabled=self.device.type == "cuda"):
            loss = self.loss(self.network(batch["data"]), batch["target"])
        if self.grad_scaler is not None:
            self.grad_scaler.scale(loss).backward()
            self.grad_scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.optimizer.step()
        return {"loss": loss.detach()}

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """All losses of the epoch are read at once."""
        losses = torch.stack([torch.as_tensor(each["loss"]) for each in train_outputs]).cpu().numpy()
        super().on_train_epoch_end([{"loss": np.asarray(value)} for value in losses])
