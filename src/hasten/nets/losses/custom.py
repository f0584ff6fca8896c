"""A user's loss: called with float32 scores and labels, and tested before training."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config.schema import LossConfig
from hasten.config.user_code import load_user_code, raised_text, require_same_source
from hasten.nets.losses.overlap import lifted, without_autocast
from hasten.nets.losses.regions import Members, region_masks

_SIDE = 8
"""Voxels along a side of the images that a loss is tried with."""


class CustomLoss(nn.Module):
    """Calls a loss with the arguments of PyTorch's and MONAI's: float32 scores and targets, outside of autocast.

    function: (scores (B, K, ...), targets) -> () loss. Targets are (B, 1, ...) int64 class index, or, with regions,
    (B, K, ...) float32 masks of 0 and 1.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], members: Members) -> None:
        super().__init__()
        self.function, self.members = function, members

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """() loss. input: (B, K, ...) scores of any float type. target: (B, 1, ...) class index of any integer type."""
        with without_autocast(input):
            scores, label = lifted(input, target)
            return self.function(scores, region_masks(label, self.members).float() if self.members else label.long())


def custom_loss(config: LossConfig, members: Members = (), ignore_index: int | None = None) -> tuple[CustomLoss, str]:
    """The loss that `config.name` names, and the SHA-256 of its source. The code is executed.

    A class is created with `config.args`; a function, or an object that can be called, is the loss itself, and gets
    them as further keyword arguments; so does `ignore_index`, the label of voxels that must not count, where there is
    one. Raises ValueError, also where the source is not that of `config.digest`.
    """
    setting = f"loss.name={config.name}"
    code = load_user_code(config.name, setting="loss.name")
    require_same_source(code, config.digest, setting=setting)
    value, args = code.value, dict(config.args)
    if not callable(value):
        raise ValueError(
            f"{setting}: is a {type(value).__name__}, which can't be called; name a function of scores and labels, or "
            "a class of such"
        )
    if ignore_index is not None:
        args["ignore_index"] = ignore_index
        if members:
            raise ValueError(
                f"{setting}: is called with the masks of regions, which can't say what is ignored; use a loss of "
                "Hasten's, or take the ignore label or the regions out of the data set"
            )
        if "ignore_index" not in inspect.signature(value).parameters:
            raise ValueError(
                f"{setting}: takes no ignore_index, and the data set has an ignore label; add that parameter, the "
                "label of voxels that must not count"
            )
    if inspect.isclass(value):
        try:
            value, args = value(**args), {}
        except Exception as error:
            raise ValueError(f"{setting}: {raised_text(error, code.path)} (called with {args})") from error

    def function(scores: Tensor, targets: Tensor) -> Any:
        return value(scores, targets, **args)

    return CustomLoss(function, members), code.digest


def check_custom_loss(
    config: LossConfig, *, num_outputs: int, spatial_dims: int, members: Members = (), ignore_index: int | None = None
) -> str:
    """Try the loss that `config.name` names with random scores and labels; returns the SHA-256 of its source.

    Raises ValueError where it raises, gives no finite () float, or no finite gradient of the scores, or where all of
    that gradient is 0: nothing would be learned.
    """
    setting = f"loss.name={config.name}"
    loss, digest = custom_loss(config, members, ignore_index)
    shape = (2, num_outputs, *[_SIDE] * spatial_dims)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator, requires_grad=True)
    classes = 1 + max((max(each) for each in members), default=num_outputs - 1)
    label = torch.randint(0, classes, (2, 1, *shape[2:]), generator=generator).to(torch.uint8)
    if ignore_index is not None:
        label[..., 0] = ignore_index
    prefix = f"{setting}: with scores of {shape} and " + (
        f"float masks of {shape}" if members else f"int64 labels of {tuple(label.shape)}"
    )
    try:
        value = loss(scores, label)
    except Exception as error:
        path = load_user_code(config.name, setting="loss.name").path
        raise ValueError(f"{prefix} {raised_text(error, path)}") from error
    fault = _fault(value, scores)
    if fault:
        raise ValueError(f"{prefix} gives {fault}")
    return digest


def _fault(value: object, scores: Tensor) -> str | None:
    """Why a loss of these scores can't be trained with."""
    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
        kind = f"a tensor of {tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        return f"{kind}; let it return one number, a float tensor of shape ()"
    if not value.isfinite():
        return f"{value.item()}; it must be finite"
    gradient = torch.autograd.grad(value, scores, allow_unused=True)[0] if value.requires_grad else None
    if gradient is None or not gradient.isfinite().all() or not gradient.any():
        return "a loss without a finite gradient of the scores other than 0"
    return None
