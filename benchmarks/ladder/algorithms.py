"""The loss and the optimizer of a task's peers: the regular ones, and those that MONAI's fast training advises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.ladder.task import Task

if TYPE_CHECKING:
    import torch


def regular_loss(task: Task) -> torch.nn.Module:
    """Dice, as the regular arm of the fast training tutorial has it; of regions as the brain tumour tutorial has it."""
    from monai.losses import DiceLoss

    if task.regions:
        return DiceLoss(smooth_nr=0, smooth_dr=1e-5, squared_pred=True, to_onehot_y=False, sigmoid=True)
    return DiceLoss(to_onehot_y=True, softmax=True)


def fast_loss(task: Task) -> torch.nn.Module:
    """The tutorial's DiceCE; DiceFocal as the guide for brain tumours has it."""
    from monai.losses import DiceCELoss, DiceFocalLoss

    shared: dict[str, Any] = {"squared_pred": True, "batch": True, "smooth_nr": 1e-5, "smooth_dr": 1e-5}
    if task.regions:
        return DiceFocalLoss(to_onehot_y=False, sigmoid=True, **shared)
    shared |= {"include_background": False, "to_onehot_y": True, "softmax": True}
    if task.peer.loss == "dice_focal":
        return DiceFocalLoss(**shared)
    return DiceCELoss(lambda_dice=0.5, lambda_ce=0.5, **shared)


def regular_optimizer(task: Task, net: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.Adam(net.parameters(), lr=task.peer.regular_lr)


def fast_optimizer(task: Task, net: torch.nn.Module) -> torch.optim.Optimizer:
    """At a constant rate, as both guides leave it."""
    import torch

    peer = task.peer
    if peer.optimizer == "novograd":
        from monai.optimizers import Novograd

        return Novograd(net.parameters(), lr=peer.lr)
    return torch.optim.SGD(net.parameters(), lr=peer.lr, momentum=0.9, weight_decay=peer.weight_decay)


def hasten_terms(task: Task) -> dict[str, dict[str, Any]]:
    """The same loss and optimizer, crop and batch in the settings of a run of Hasten.

    MONAI's DiceCE is half of Hasten's, so that SGD takes half the rate and twice the decay for the same steps. What
    remains different: Hasten's SGD is Nesterov's and does not decay biases and norms, its Dice does not square. The
    rate is constant, so that steps are only a bound: the target or the cap comes first in nearly every run.
    """
    peer, batch = task.peer, task.peer.cases * task.peer.crops
    halved = peer.optimizer == "sgd" and peer.loss == "dice_ce"
    none = {f"{name}_prob": 0.0 for name in ("affine", "brightness", "contrast", "gamma", "noise")}
    epochs = -(-task.patches_per_epoch * peer.validate_every // batch)
    return {
        "sample": {"patch": task.patch, "batch_size": batch, "flip_prob": (0.0, 0.0, 0.0), "stages": (),
                   "foreground_prob": 0.5, "fit_batch": False, **none},
        "loss": {"name": peer.loss, "include_background": False, "batch": True},
        "train": {"optimizer": peer.optimizer, "momentum": 0.9, "schedule": "constant",
                  "learning_rate": peer.lr / 2 if halved else peer.lr, "learning_rate_batch": 0,
                  "weight_decay": 2 * peer.weight_decay if halved else peer.weight_decay,
                  "warmup_fraction": 0.0, "clip_norm": 0.0, "ema": 0.0, "accumulate": 1,
                  "steps": max(1, 8 * task.schedule // batch), "validate_every": epochs, "checkpoint_every": None},
        "infer": {"patch": task.roi, "overlap": task.overlap},
    }  # fmt: skip
