"""Builds a plan's network: MONAI's, nnU-Net's or the user's. MONAI is imported where its own classes are needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from torch import nn

from hasten.config.networks import NETWORKS, is_own, network_mistake
from hasten.config.schema import Triple
from hasten.config.settled import PlannedNetwork
from hasten.nets.custom_network import custom_network
from hasten.nets.losses.make_loss import Loss, build_loss
from hasten.nets.nnunet import Layers, Level, NnUNet
from hasten.nets.unet import UNet

__all__ = ["Loss", "build_loss", "build_network", "divisor"]

_MODULE: dict[str, Callable[[], nn.Module]] = {
    "prelu": nn.PReLU,
    "relu": partial(nn.ReLU, inplace=True),
    "leakyrelu": partial(nn.LeakyReLU, 0.01, inplace=True),
}
NNUNET = {"plainconvunet": "PlainConvUNet", "residualencoderunet": "ResidualEncoderUNet"}
"""nnU-Net's networks, which MONAI does not have, and their classes."""
_ACT = {"prelu": "PRELU", "relu": "RELU", "leakyrelu": ("LEAKYRELU", {"negative_slope": 0.01, "inplace": True})}


def divisor(config: PlannedNetwork) -> Triple:
    """What each side (D, H, W) of an input must be a multiple of."""
    if config.divisor is not None:
        return config.divisor
    depth, height, width = (prod(stride[axis] for stride in config.strides) for axis in range(3))
    return depth, height, width


def build_network(
    config: PlannedNetwork, *, num_channels: int, num_classes: int, spatial_dims: int, patch: Triple | None = None
) -> nn.Module:
    """A network that maps (B, C, D, H, W) to (B, K, D, H, W) scores, or (B, C, H, W) to (B, K, H, W) in 2-D.

    With deep supervision it returns several in training. patch: (D, H, W) of a training patch, for a user's network,
    whose code is executed. Raises ValueError for a combination that the network does not support.
    """
    if is_own(config):
        assert patch is not None
        user_network = custom_network(
            config, num_channels=num_channels, num_classes=num_classes, spatial_dims=spatial_dims
        )
        return user_network.build(patch[3 - spatial_dims :])
    mistake = network_mistake(config, spatial_dims)
    if mistake:
        raise ValueError(mistake)
    if config.name in NNUNET:
        return _nnunet(config, num_channels, num_classes, spatial_dims)
    if config.name == "unet":
        strides = _strides(config, spatial_dims)
        layers = _layers(config, spatial_dims)
        return UNet(layers, num_channels, num_classes, config.channels, strides, config.num_res_units)
    import monai.networks.nets

    name, arguments = monai_network(config, num_channels, num_classes, spatial_dims)
    return getattr(monai.networks.nets, name)(**arguments)


def monai_network(config: PlannedNetwork, inputs: int, outputs: int, dims: int) -> tuple[str, dict[str, Any]]:
    """The class in `monai.networks.nets` of a built-in network that is MONAI's, and its arguments, plain values."""
    common: dict[str, Any] = {"spatial_dims": dims, "in_channels": inputs, "out_channels": outputs}
    strides = _strides(config, dims)
    match config.name:
        case "unet":
            return "UNet", {
                **common,
                "channels": config.channels,
                "strides": strides,
                "num_res_units": config.num_res_units,
                "act": _act(config),
                "norm": config.norm,
                "dropout": config.dropout,
            }
        case "dynunet":
            return "DynUNet", {
                **common,
                "kernel_size": _kernels(config, dims),
                "strides": [(1,) * dims, *strides],
                "upsample_kernel_size": strides,
                "filters": config.channels,
                "dropout": config.dropout or None,
                "norm_name": (config.norm, {"affine": True}),
                "act_name": _act(config),
                "res_block": config.num_res_units > 0,
                "deep_supervision": config.deep_supervision > 0,
                "deep_supr_num": max(1, config.deep_supervision),
            }
        case "segresnet":
            return "SegResNet", {**common, **_of_segresnets(config), "dropout_prob": config.dropout or None}
        case "segresnetds":
            return "SegResNetDS", {**common, **_of_segresnets(config), "dsdepth": 1 + config.deep_supervision}
        case "mednext":
            # The paper's S: kernels of 3, expansion ratios of 2, residual connections; two blocks at each level.
            *down, bottom = config.blocks or (2,) * len(config.channels)
            return "MedNeXt", {
                **common,
                "init_filters": config.channels[0],
                "kernel_size": 3,
                "deep_supervision": config.deep_supervision > 0,
                "use_residual_connection": True,
                "blocks_down": down,
                "blocks_bottleneck": bottom,
                "blocks_up": down[::-1],
            }
        case "swinunetr":
            return "SwinUNETR", {
                **common,
                "feature_size": config.channels[0],
                "norm_name": config.norm,
                "drop_rate": config.dropout,
            }
    raise AssertionError(config.name)


def _of_segresnets(config: PlannedNetwork) -> dict[str, Any]:
    """The arguments that both of MONAI's SegResNets take."""
    levels = len(config.channels)
    return {
        "init_filters": config.channels[0],
        "blocks_down": config.blocks or (1, *[2] * (levels - 1)),
        "blocks_up": (1,) * (levels - 1),
        "norm": (config.norm, {"affine": True}),
        "act": _act(config) if config.act != "prelu" else "RELU",  # these accept no activation with weights
    }


def _act(config: PlannedNetwork) -> Any:
    return _ACT[config.act or NETWORKS[config.name].act]


def _strides(config: PlannedNetwork, dims: int) -> list[tuple[int, ...]]:
    return [stride[3 - dims :] for stride in config.strides]


def _kernels(config: PlannedNetwork, dims: int) -> list[tuple[int, ...]]:
    """Kernel sizes of each level; 3 everywhere where nothing else is set."""
    return [kernel[3 - dims :] for kernel in config.kernel_size or ((3, 3, 3),) * len(config.channels)]


def _layers(config: PlannedNetwork, dims: int) -> Layers:
    act = config.act or NETWORKS[config.name].act
    return Layers(dims=dims, norm=config.norm, act=_MODULE[act], dropout=config.dropout)


def _nnunet(config: PlannedNetwork, inputs: int, outputs: int, dims: int) -> nn.Module:
    residual, count = config.name == "residualencoderunet", len(config.channels)
    blocks = config.blocks or ((1, 3, 4, *[6] * count)[:count] if residual else (2,) * count)
    strides = [(1,) * dims, *_strides(config, dims)]
    levels = [
        Level(channels=width, kernel=kernel, stride=stride, blocks=number)
        for width, kernel, stride, number in zip(config.channels, _kernels(config, dims), strides, blocks, strict=True)
    ]
    return NnUNet(_layers(config, dims), inputs, outputs, levels, residual=residual, heads=config.deep_supervision)
