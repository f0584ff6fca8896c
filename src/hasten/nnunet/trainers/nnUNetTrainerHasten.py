"""nnU-Net's trainer with Hasten's batches. nnU-Net finds it by nnUNet_extTrainer; `hasten nnunet` sets that.

Plans, network, loss, optimizer, schedule, checkpoints, validation and prediction are nnU-Net's own. Its variants are
here, too, under their names with Hasten behind nnUNetTrainer: nnUNetTrainerHasten_250epochs is nnUNetTrainer_250epochs
with Hasten's batches.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import nnunetv2
import numpy as np
import torch
from nnunetv2.preprocessing.resampling.default_resampling import compute_new_shape
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class
from torch import autocast

from hasten.config.size import parse_size
from hasten.nnunet.batches import Augmentation, Batches, make_batches
from hasten.nnunet.cases import placed, read_cases
from hasten.nnunet.crop import NnunetCrop
from hasten.nnunet.version import check_version

_CUDA = torch.device("cuda")


class nnUNetTrainerHasten(nnUNetTrainer):  # nnU-Net's way to name trainers
    """`nnUNetv2_train DATASET CONFIGURATION FOLD -tr nnUNetTrainerHasten`."""

    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = _CUDA,
    ) -> None:
        check_version()
        super().__init__(plans, configuration, fold, dataset_json, device)

    def get_dataloaders(self) -> tuple[Any, Any]:
        """Batches from cases that are read once; nnU-Net's own loaders for what Hasten does not support."""
        reason = self._why_not()
        if reason:
            self.print_to_log_file(f"Hasten: {reason}; nnU-Net's own data loaders take its place")
            return super().get_dataloaders()
        folder = Path(self.preprocessed_dataset_folder)
        if not folder.is_dir():
            raise ValueError(
                f"{folder}: there are no preprocessed cases of this plan and configuration; make them with "
                f"nnUNetv2_preprocess -d {self.plans_manager.dataset_name} -plans_name {self.plans_manager.plans_name} "
                f"-c {self.configuration_name}"
            )
        self.dataset_class: Any = self.dataset_class or infer_dataset_class(self.preprocessed_dataset_folder)
        rotation, in_plane, initial, mirror_axes = self.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        patch = self.configuration_manager.patch_size
        augmentation = Augmentation(
            rotate_deg=math.degrees(max(rotation)), mirror_axes=tuple(mirror_axes or ()), in_plane=in_plane
        )
        train, validation = self.get_tr_and_val_datasets()
        self._check_plan(train)
        return self._batches(train, initial, augmentation), self._batches(validation, patch, None)

    def _batches(self, dataset: Any, initial: Any, augmentation: Augmentation | None) -> Batches:
        """initial: size of the patch that nnU-Net crops before it rotates. augmentation: None for validation."""
        labels, patch = self.label_manager, self.configuration_manager.patch_size
        annotated = (-1, *labels.all_labels) if labels.has_ignore_label else None
        masked = [number for number, use in enumerate(self.configuration_manager.use_mask_for_norm or ()) if use]
        ram = os.environ.get("HASTEN_RAM")
        store = read_cases(
            dataset, spatial_dims=len(patch), annotated=annotated, outside=bool(masked),
            budget=parse_size(ram) if ram else None, folder=Path(self.preprocessed_dataset_folder),
        )  # fmt: skip
        size, share = self.batch_size, self.oversample_foreground_percent
        crop = NnunetCrop(
            size=_triple(patch), initial_size=_triple(initial), batch_size=size, annotated=annotated is not None,
            forced=size - round(size * (1 - share)), forced_prob=share if self.probabilistic_oversampling else None,
        )  # fmt: skip
        train = augmentation is not None
        seed = int(os.environ.get("HASTEN_SEED", "0")) * 1000 + 2 * self.local_rank + (not train)
        program = make_batches(
            placed(store, self.device), crop, augmentation, batch_size=size, seed=seed, device=self.device
        )
        regions = (
            [*labels.foreground_regions, *([labels.ignore_label] if annotated else [])] if labels.has_regions else []
        )
        steps = self.num_iterations_per_epoch if train else self.num_val_iterations_per_epoch
        return Batches(
            program=program, first=self.current_epoch * steps, scales=self._get_deep_supervision_scales(),
            regions=[sorted(np.atleast_1d(region).tolist()) for region in regions], masked=masked,
        )  # fmt: skip

    def _why_not(self) -> str:
        """Why Hasten cannot make this training's batches; "" if it can."""
        for name in ("get_training_transforms", "get_validation_transforms"):
            if getattr(type(self), name) is not getattr(nnUNetTrainer, name):
                return "the trainer has an augmentation of its own"
        if self.is_cascaded:
            return "the second stage of a cascade, whose augmentation changes the first stage's masks case by case"
        return ""

    def _check_plan(self, dataset: Any) -> None:
        """Raises ValueError where the first case has not the size that the plan gives it."""
        name = dataset.identifiers[0]
        data, _, _, properties = dataset.load_case(name)
        spacing = [properties["spacing"][axis] for axis in self.plans_manager.transpose_forward]
        target = [*spacing[:1], *self.configuration_manager.spacing][-3:]
        expected_shape = compute_new_shape(properties["shape_after_cropping_and_before_resampling"], spacing, target)
        channels = self.num_input_channels
        if tuple(data.shape) != (channels, *expected_shape):
            raise ValueError(
                f"{name}: preprocessed to {tuple(data.shape)}, the plan {self.plans_manager.plans_name} asks for "
                f"{(channels, *expected_shape.tolist())}; the plan has changed since: run nnUNetv2_preprocess again"
            )

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


def _triple(patch: Any) -> tuple[int, int, int]:
    depth, height, width = (1, *map(int, patch))[-3:]
    return depth, height, width


def __getattr__(name: str) -> type[nnUNetTrainer]:
    """nnU-Net's variant of that name with Hasten's batches. Raises AttributeError where nnU-Net has none."""
    variant = name.replace("nnUNetTrainerHasten", "nnUNetTrainer", 1)
    if variant == name:
        raise AttributeError(name)
    folder = Path(nnunetv2.__path__[0])
    base = recursive_find_python_class(
        str(folder / "training/nnUNetTrainer"), variant, "nnunetv2.training.nnUNetTrainer", str(folder)
    )
    if base is None or any(
        getattr(base, attribute) is not getattr(nnUNetTrainer, attribute) for attribute in _REPLACED
    ):
        raise AttributeError(name)
    return type(name, (nnUNetTrainerHasten, base), {})


_REPLACED = ("get_dataloaders", "train_step", "on_train_epoch_end")
"""Methods of nnU-Net that nnUNetTrainerHasten replaces; a variant that replaces them, too, is not supported."""
