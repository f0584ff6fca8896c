"""nnU-Net's trainer with Hasten's batches and step. nnU-Net finds it by nnUNet_extTrainer; `hasten nnunet` sets that.

Plans, network, loss, optimizer, schedule, checkpoints, final validation and prediction are nnU-Net's own. Its variants
are here, too, under their names with Hasten behind nnUNetTrainer: nnUNetTrainerHasten_250epochs is
nnUNetTrainer_250epochs with Hasten's batches and step.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import nnunetv2
import numpy as np
import torch
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class

from hasten.augment.make_program import CaseSource, make_program
from hasten.cache.key import cache_dir
from hasten.config.decision import Accelerator
from hasten.config.schema import CacheConfig
from hasten.nets.surgery.operate import undo
from hasten.nets.weights import unwrapped
from hasten.nnunet import check_version
from hasten.nnunet.batches import Augmentation, NnunetCrop, batches_of, chain_of, placed, read_cases
from hasten.nnunet.loss import asks_host, hard_counts, objective
from hasten.nnunet.step import LEAST_ITERATIONS, GraphedStep, StepSetting, evaluate, fused_optimizer, is_idle, make_step

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
        """nnU-Net's, its SGD as one pass over the weights."""
        optimizer, schedule = super().configure_optimizers(*args, **options)
        fused = fused_optimizer(optimizer)
        if fused is optimizer or type(schedule) is not PolyLRScheduler:
            return optimizer, schedule
        return fused, PolyLRScheduler(fused, schedule.initial_lr, schedule.max_steps, schedule.exponent)

    def get_dataloaders(self) -> tuple[Any, Any]:
        """Batches from cases that are read once; nnU-Net's own loaders for what Hasten does not support."""
        reason = self._why_not()
        if reason:
            return self._own_loaders(reason)
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
        try:
            return self._batches(train, initial, augmentation), self._batches(validation, patch, None)
        except MemoryError as error:
            return self._own_loaders(str(error))

    def _own_loaders(self, reason: str) -> tuple[Any, Any]:
        self.print_to_log_file(f"Hasten: {reason}; nnU-Net's own data loaders take its place")
        return super().get_dataloaders()

    def _batches(self, dataset: Any, initial: Any, augmentation: Augmentation | None) -> Any:
        """initial: size of the patch that nnU-Net crops before it rotates. augmentation: None for validation."""
        labels, patch = self.label_manager, self.configuration_manager.patch_size
        annotated = (-1, *labels.all_labels) if labels.has_ignore_label else None
        masked = [number for number, use in enumerate(self.configuration_manager.use_mask_for_norm or ()) if use]
        store = read_cases(dataset, spatial_dims=len(patch), annotated=annotated)
        size, share = self.batch_size, self.oversample_foreground_percent
        sizes = {"size": _triple(patch), "initial_size": _triple(initial), "batch_size": size}
        forced = {"forced": size - round(size * (1 - share))}
        forced["forced_prob"] = share if self.probabilistic_oversampling else None
        crop = NnunetCrop(**sizes, annotated=annotated is not None, **forced)
        train = augmentation is not None
        seed = int(os.environ.get("HASTEN_SEED", "0")) * 1000 + 2 * self.local_rank + (not train)
        store = placed(store, self.device)
        chain, cases = chain_of(store, crop, augmentation), CaseSource(store=store)
        program = make_program(chain, cases, batch_size=size, seed=seed, device=self.device)
        steps = self.num_iterations_per_epoch if train else self.num_val_iterations_per_epoch
        first, scales = self.current_epoch * steps, self._get_deep_supervision_scales()
        return batches_of(program, first=first, scales=scales, regions=self._regions, masked=masked)

    def _why_not(self) -> str:
        """Why Hasten cannot make this training's batches; "" if it can."""
        if self.is_cascaded:
            return "the first stage's masks of a cascade are augmented by nnU-Net alone"
        for name in ("get_training_transforms", "get_validation_transforms"):
            if getattr(type(self), name) is not getattr(nnUNetTrainer, name):
                return "the trainer has an augmentation of its own"
        for name, kind in (("data set", self.dataset_class), ("label manager", type(self.label_manager))):
            if kind is not None and not kind.__module__.startswith("nnunetv2."):
                return f"the {name} {kind.__name__} is not nnU-Net's"
        return ""

    def on_train_start(self) -> None:
        """Begin with the step that suits this machine. What nnU-Net saves and predicts with stays its own network."""
        super().on_train_start()
        labels, config = self.label_manager, self.configuration_manager
        self._setting = StepSetting(
            shape=(self.batch_size, self.num_input_channels, *_triple(config.patch_size)),
            strides=tuple(map(math.prod, zip(*config.pool_op_kernel_sizes, strict=True))),
            num_classes=len(labels.all_labels),
            spatial_dims=len(config.patch_size),
            regions=self._regions,
            iterations=self._iterations_left,
            several_ranks=self.is_ddp,
            loss_asks_host=asks_host(self.loss),
            idle=self._idle,
            memory=cache_dir(CacheConfig()) / "measured",
        )
        self._step, self._accelerators = make_step(
            self.network, objective(self.loss), self.optimizer, self._setting, self.device, self.grad_scaler
        )
        self.network = self._step.network
        self._graphed = GraphedStep(self._step, self._setting)
        for name, each in self._accelerators.items():
            self._log(name, each)
        self._log_graph()

    def _log_graph(self) -> None:
        """Log whether the step is a CUDA graph, which the first epoch decides, where that has changed."""
        graph = self._graphed.accelerator
        if self._accelerators.get("CUDA graph") != graph:
            self._log("CUDA graph", graph)
        self._accelerators["CUDA graph"] = graph

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
        """nnU-Net's, in the precision of the training; what it counts stays on the device."""
        image, target = self._on_device(batch)
        loss, scores = evaluate(self._step, image, target)
        labels = self.label_manager
        counts = hard_counts(scores, target, regions=labels.has_regions, ignore=labels.ignore_label)
        return {"loss": loss, "counts": counts}

    def on_validation_epoch_end(self, val_outputs: list[dict[str, Any]]) -> None:
        """All batches of the epoch are read at once."""
        self._log_graph()
        losses, counts = (
            torch.stack([each[name] for each in val_outputs]).double().cpu().numpy() for name in ("loss", "counts")
        )
        outputs = [
            {"loss": np.asarray(loss), "tp_hard": hit, "fp_hard": false, "fn_hard": missed}
            for loss, (hit, false, missed) in zip(losses, counts, strict=True)
        ]
        super().on_validation_epoch_end(outputs)

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
    "get_dataloaders",
    "on_train_start",
    "train_step",
    "on_train_epoch_end",
    "validation_step",
    "on_validation_epoch_end",
)
"""Methods of nnU-Net that nnUNetTrainerHasten replaces; a variant that replaces them, too, is not supported."""
