"""nnU-Net's trainer with Hasten's batches and step. nnU-Net finds it by nnUNet_extTrainer; `hasten nnunet` sets that.

Plans, network, loss, optimizer, schedule, checkpoints, final validation and prediction are nnU-Net's own. Its variants
are here, too, under their names with Hasten behind nnUNetTrainer: nnUNetTrainerHasten_250epochs is
nnUNetTrainer_250epochs with Hasten's batches and step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import nnunetv2
import numpy as np
import torch
from nnunetv2.preprocessing.resampling.default_resampling import compute_new_shape
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class

from hasten.augment.make_program import CaseSource, make_program
from hasten.cache.key import cache_dir
from hasten.config.decision import Accelerator
from hasten.config.schema import CacheConfig
from hasten.config.size import parse_size
from hasten.kernels.use import triton_works
from hasten.nets.surgery.operate import undo
from hasten.nets.wrappers import unwrapped
from hasten.nnunet import check_version
from hasten.nnunet.batches import Augmentation, Batches, chain_of
from hasten.nnunet.cascade import FirstStage
from hasten.nnunet.cases import placed, read_cases
from hasten.nnunet.crop import NnunetCrop
from hasten.nnunet.graph import GraphedStep
from hasten.nnunet.loss import asks_host, hard_counts, objective
from hasten.nnunet.step import (
    LEAST_ITERATIONS,
    MUON_RATE,
    StepSetting,
    fused_optimizer,
    is_idle,
    make_step,
    muon,
)
from hasten.nnunet.validation import Validation

_CUDA = torch.device("cuda")


class nnUNetTrainerHasten(nnUNetTrainer):  # nnU-Net's way to name trainers
    """`nnUNetv2_train DATASET CONFIGURATION FOLD -tr nnUNetTrainerHasten`."""

    network: Any

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = _CUDA,
    ) -> None:
        check_version()
        super().__init__(plans, configuration, fold, dataset_json, device)

    @property
    def _iterations_left(self) -> int:
        return (self.num_epochs - self.current_epoch) * self.num_iterations_per_epoch

    @cached_property
    def _idle(self) -> bool:
        return self._iterations_left < LEAST_ITERATIONS or is_idle(self.device)

    @property
    def _regions(self) -> list[list[int]]:
        """Rising labels of each mask of the target, that of the label to ignore last; [] for classes."""
        labels = self.label_manager
        if not labels.has_regions:
            return []
        ignored = [] if labels.ignore_label is None else [labels.ignore_label]
        return [sorted(np.atleast_1d(region).tolist()) for region in (*labels.foreground_regions, *ignored)]

    def configure_optimizers(self, *args: Any, **options: Any) -> tuple[torch.optim.Optimizer, Any]:
        """nnU-Net's, its SGD as one pass over the weights; with HASTEN_OPTIMIZER=muon that, and the same schedule."""
        name = os.environ.get("HASTEN_OPTIMIZER", "")
        if name == "muon":
            optimizer = muon(unwrapped(self.network), self.weight_decay)
            return optimizer, PolyLRScheduler(optimizer, MUON_RATE, self.num_epochs)
        if name:
            raise ValueError(f"HASTEN_OPTIMIZER={name}: write muon, or leave it out for nnU-Net's own optimizer")
        optimizer, schedule = super().configure_optimizers(*args, **options)
        fused = fused_optimizer(optimizer)
        if fused is optimizer or type(schedule) is not PolyLRScheduler:
            return optimizer, schedule
        return fused, PolyLRScheduler(fused, schedule.initial_lr, schedule.max_steps, schedule.exponent)

    def load_checkpoint(self, filename_or_checkpoint: dict[str, Any] | str) -> None:
        try:
            super().load_checkpoint(filename_or_checkpoint)
        except ValueError as error:
            raise ValueError(
                f"{filename_or_checkpoint}: its optimizer is not this training's ({error}); set HASTEN_OPTIMIZER as "
                "in the training that it comes from"
            ) from error

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
        if self.is_cascaded:
            self._check_first_stage([*train.identifiers, *validation.identifiers])
        self._check_plan(train)
        return self._batches(train, initial, augmentation), self._batches(validation, patch, None)

    def _batches(self, dataset: Any, initial: Any, augmentation: Augmentation | None) -> Batches:
        """initial: size of the patch that nnU-Net crops before it rotates. augmentation: None for validation."""
        labels, patch = self.label_manager, self.configuration_manager.patch_size
        annotated = (-1, *labels.all_labels) if labels.has_ignore_label else None
        masked = [number for number, use in enumerate(self.configuration_manager.use_mask_for_norm or ()) if use]
        ram = os.environ.get("HASTEN_RAM")
        store = read_cases(
            dataset, spatial_dims=len(patch), annotated=annotated, budget=parse_size(ram) if ram else None,
            folder=Path(self.preprocessed_dataset_folder),
        )  # fmt: skip
        size, share = self.batch_size, self.oversample_foreground_percent
        crop = NnunetCrop(
            size=_triple(patch), initial_size=_triple(initial), batch_size=size, annotated=annotated is not None,
            forced=size - round(size * (1 - share)), forced_prob=share if self.probabilistic_oversampling else None,
            keys=tuple(store.values),
        )  # fmt: skip
        train = augmentation is not None
        seed = int(os.environ.get("HASTEN_SEED", "0")) * 1000 + 2 * self.local_rank + (not train)
        long = self._iterations_left >= LEAST_ITERATIONS
        store = placed(store, self.device)
        program = make_program(
            chain_of(store, crop, augmentation), CaseSource(store=store), batch_size=size, seed=seed,
            device=self.device,
            # Once for each patch size: up to a minute, and many on a busy machine. Hasten's GPU kernels need it not.
            compile=train and long and self._idle and not triton_works(self.device),
        )  # fmt: skip
        steps = self.num_iterations_per_epoch if train else self.num_val_iterations_per_epoch
        return Batches(
            program=program, first=self.current_epoch * steps, scales=self._get_deep_supervision_scales(),
            regions=self._regions, masked=masked,
            first_stage=FirstStage(labels=tuple(labels.foreground_labels), seed=seed if train else None)
            if self.is_cascaded else None,
        )  # fmt: skip

    def _why_not(self) -> str:
        """Why Hasten cannot make this training's batches; "" if it can."""
        for name in ("get_training_transforms", "get_validation_transforms"):
            if getattr(type(self), name) is not getattr(nnUNetTrainer, name):
                return "the trainer has an augmentation of its own"
        for name, kind in (("data set", self.dataset_class), ("label manager", type(self.label_manager))):
            if kind is not None and not kind.__module__.startswith("nnunetv2."):
                return f"the {name} {kind.__name__} is not nnU-Net's"
        return ""

    def _check_plan(self, dataset: Any) -> None:
        """Raises ValueError where the first case has not the size that the plan gives it."""
        name = dataset.identifiers[0]
        data, _, _, properties = dataset.load_case(name)
        spacing = [properties["spacing"][axis] for axis in self.plans_manager.transpose_forward]
        target = [*spacing[:1], *self.configuration_manager.spacing][-3:]
        expected_shape = compute_new_shape(properties["shape_after_cropping_and_before_resampling"], spacing, target)
        channels = self.num_input_channels
        if self.is_cascaded:
            channels -= len(self.label_manager.foreground_labels)
        if tuple(data.shape) != (channels, *expected_shape):
            raise ValueError(
                f"{name}: preprocessed to {tuple(data.shape)}, the plan {self.plans_manager.plans_name} asks for "
                f"{(channels, *expected_shape.tolist())}; the plan has changed since: run nnUNetv2_preprocess again"
            )

    def _check_first_stage(self, names: Sequence[str]) -> None:
        """Raises ValueError where the first stage has not predicted all cases."""
        folder = Path(self.folder_with_segs_from_previous_stage)
        predicted = {path.stem for path in folder.glob("*.*")}
        absent = sorted(set(names) - predicted)
        if absent:
            dataset, stage = self.plans_manager.dataset_name, self.configuration_manager.previous_stage_name
            raise ValueError(
                f"{folder}: has no prediction of {len(absent)} of {len(names)} cases, such as {absent[0]}; train every "
                f"fold of the first stage with the same trainer first: nnUNetv2_train {dataset} {stage} FOLD "
                f"-tr {type(self).__name__}"
            )

    def on_train_start(self) -> None:
        """Begin with the step that suits this machine. What nnU-Net saves and predicts with stays its own network."""
        super().on_train_start()
        labels, config = self.label_manager, self.configuration_manager
        self._setting = StepSetting(
            shape=(self.batch_size, self.num_input_channels, *_triple(config.patch_size)),
            strides=tuple(map(math.prod, zip(*config.pool_op_kernel_sizes, strict=True))),
            num_classes=len(labels.all_labels), spatial_dims=len(config.patch_size), regions=self._regions,
            iterations=self._iterations_left, several_ranks=self.is_ddp, loss_asks_host=asks_host(self.loss),
            idle=self._idle, memory=cache_dir(CacheConfig()) / "measured",
        )  # fmt: skip
        self._step, self._accelerators = make_step(
            self.network, objective(self.loss), self.optimizer, self._setting, self.device, self.grad_scaler
        )
        self.network = self._step.network
        self._graphed = GraphedStep(self._step, self._setting)
        counts = partial(hard_counts, regions=labels.has_regions, ignore=labels.ignore_label)
        self._validation = Validation(self._step, self._setting, counts)
        for name, each in self._accelerators.items():
            self._log(name, each)
        self._log_late_accelerators()

    def _log_late_accelerators(self) -> None:
        """Log the accelerators that the first epoch decides, where they have changed."""
        accelerators = {
            "CUDA graph": self._graphed.accelerator,
            "larger batches of validation": self._validation.accelerator,
        }
        for name, each in accelerators.items():
            if self._accelerators.get(name) != each:
                self._log(name, each)
        self._accelerators |= accelerators

    def _log(self, name: str, accelerator: Accelerator) -> None:
        self.print_to_log_file(f"Hasten: {name} {'on' if accelerator.on else 'off'}: {accelerator.reason}")

    def on_train_end(self) -> None:
        self._graphed.close()
        super().on_train_end()
        undo(unwrapped(self.network))

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """nnU-Net's step, which leaves the loss on the device: reading it would wait for the GPU in every step."""
        if self._step.update.optimizer is not self.optimizer:  # some variants replace it on the way
            self._graphed.close()
            self._step.update.optimizer = self.optimizer
            self._graphed = GraphedStep(self._step, self._setting)
        return {"loss": self._graphed(*self._on_device(batch))}

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """All losses of the epoch are read at once."""
        losses = torch.stack([each["loss"] for each in train_outputs]).cpu().numpy()
        super().on_train_epoch_end([{"loss": np.asarray(value)} for value in losses])

    def validation_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """nnU-Net's, in the precision of the training; what it counts stays on the device.

        The dict is filled by the end of the epoch: a pass of the network may wait for further batches.
        """
        return self._validation(*self._on_device(batch))

    def on_validation_epoch_end(self, val_outputs: list[dict[str, Any]]) -> None:
        """All batches of the epoch are read at once."""
        self._validation.finish()
        self._log_late_accelerators()
        losses, counts = (
            torch.stack([each[name] for each in val_outputs]).double().cpu().numpy() for name in ("loss", "counts")
        )
        super().on_validation_epoch_end([
            {"loss": np.asarray(loss), "tp_hard": hit, "fp_hard": false, "fn_hard": missed}
            for loss, (hit, false, missed) in zip(losses, counts, strict=True)
        ])  # fmt: skip

    def _on_device(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Image and target of full size; the coarser ones are views of it, which the loss takes."""
        target = batch["target"][0] if isinstance(batch["target"], list) else batch["target"]
        return batch["data"].to(self.device, non_blocking=True), target.to(self.device, non_blocking=True)


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


_REPLACED = (
    "get_dataloaders", "load_checkpoint", "on_train_start", "train_step", "on_train_epoch_end", "validation_step",
    "on_validation_epoch_end",
)  # fmt: skip
"""Methods of nnU-Net that nnUNetTrainerHasten replaces; a variant that replaces them, too, is not supported."""
