"""Networks from MONAI, or of the user's own, built from the plan. MONAI is imported here and not before."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import nn

from hasten.config.network import is_own
from hasten.config.schema import HALVING, Triple
from hasten.config.settled import PlannedNetwork
from hasten.nets.losses.build import Loss, build_loss
from hasten.nets.own import own_network

__all__ = ["Loss", "build_loss", "build_network", "divisor", "network_mistake"]

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

    With deep supervision it gives several in training. patch: (D, H, W) of a training patch, for a network of the
    user's own, whose code is executed. Raises ValueError for a combination that the network does not have.
    """
    if is_own(config):
        assert patch is not None
        own = own_network(config, num_channels=num_channels, num_classes=num_classes, spatial_dims=spatial_dims)
        return own.build(patch[3 - spatial_dims :])
    mistake = network_mistake(config, spatial_dims)
    if mistake:
        raise ValueError(mistake)
    strides = [stride[3 - spatial_dims :] for stride in config.strides]
    match config.name:
        case "unet":
            return _unet(config, strides, num_channels, num_classes, spatial_dims)
        case "dynunet":
            return _dynunet(config, strides, num_channels, num_classes, spatial_dims)
        case "segresnet":
            return _segresnet(config, num_channels, num_classes, spatial_dims)
        case "segresnetds":
            return _segresnetds(config, num_channels, num_classes, spatial_dims)
    raise AssertionError(config.name)


def network_mistake(config: PlannedNetwork, spatial_dims: int) -> str | None:
    """What `build_network` would raise, without building anything."""
    if is_own(config):
        return None
    channels, strides = config.channels, config.strides
    if len(strides) != len(channels) - 1:
        return (
            f"network.strides: {len(strides)} strides for {len(channels)} levels of network.channels; "
            f"give {len(channels) - 1}, one between each two neighbouring levels"
        )
    if spatial_dims == 2 and any(stride[0] != 1 for stride in strides):
        flat = [[1, *stride[1:]] for stride in strides]
        return f"network.strides: {_lists(strides)} halve the depth of 2-D images; use {flat}"
    if config.name == "dynunet" and len(strides) < 2:
        return (
            f"network.strides: {len(strides)} for network.name=dynunet, which has 3 levels or more; "
            "give 2 strides and 3 channels, or use network.name=unet"
        )
    if config.deep_supervision > 0 and config.name not in ("dynunet", "segresnetds"):
        return (
            f"network.deep_supervision: {config.deep_supervision}, which only network.name=dynunet and segresnetds "
            "have; set it to 0, or use one of them"
        )
    if config.dropout > 0 and config.name == "segresnetds":
        return (
            f"network.dropout: {config.dropout}, and segresnetds has none; set it to 0, or use network.name=segresnet"
        )
    if 0 < len(strides) <= config.deep_supervision:
        return (
            f"network.deep_supervision: {config.deep_supervision} for {len(strides)} network.strides; there is an "
            f"output at each level but the coarsest: use {len(strides) - 1} or less"
        )
    wanted = (2, 2, 2) if spatial_dims == 3 else (1, 2, 2)
    doubling = [channels[0] * 2**level for level in range(len(channels))]
    if config.name in HALVING and (list(channels) != doubling or any(stride != wanted for stride in strides)):
        strides_wanted = [list(wanted)] * len(strides)
        return (
            f"network.channels: {list(channels)} with network.strides {_lists(strides)}; {config.name} doubles its "
            f"channels and halves every side at each level: use {doubling} with strides {strides_wanted}, or "
            "network.name=unet"
        )
    return None


def _lists(strides: tuple[Triple, ...]) -> list[list[int]]:
    return [list(stride) for stride in strides]


def _unet(config: PlannedNetwork, strides: list[tuple[int, ...]], inputs: int, outputs: int, dims: int) -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(
        spatial_dims=dims,
        in_channels=inputs,
        out_channels=outputs,
        channels=config.channels,
        strides=strides,
        num_res_units=config.num_res_units,
        act=_ACT[config.act],
        norm=config.norm,
        dropout=config.dropout,
    )


def _dynunet(config: PlannedNetwork, strides: list[tuple[int, ...]], inputs: int, outputs: int, dims: int) -> nn.Module:
    from monai.networks.nets import DynUNet

    return DynUNet(
        spatial_dims=dims,
        in_channels=inputs,
        out_channels=outputs,
        kernel_size=[3] * len(strides) + [3],
        strides=[1, *strides],
        upsample_kernel_size=strides,
        filters=config.channels,
        dropout=config.dropout or None,
        norm_name=(config.norm, {"affine": True}),
        act_name=_ACT[config.act],
        res_block=config.num_res_units > 0,
        deep_supervision=config.deep_supervision > 0,
        deep_supr_num=max(1, config.deep_supervision),
    )


def _segresnet(config: PlannedNetwork, inputs: int, outputs: int, dims: int) -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(**_of_segresnets(config, inputs, outputs, dims), dropout_prob=config.dropout or None)


def _segresnetds(config: PlannedNetwork, inputs: int, outputs: int, dims: int) -> nn.Module:
    from monai.networks.nets import SegResNetDS

    return SegResNetDS(**_of_segresnets(config, inputs, outputs, dims), dsdepth=1 + config.deep_supervision)


def _of_segresnets(config: PlannedNetwork, inputs: int, outputs: int, dims: int) -> dict[str, Any]:
    """The arguments that both of MONAI's SegResNets take."""
    levels = len(config.channels)
    return {
        "spatial_dims": dims,
        "init_filters": config.channels[0],
        "in_channels": inputs,
        "out_channels": outputs,
        "blocks_down": (1, *[2] * (levels - 1)),
        "blocks_up": (1,) * (levels - 1),
        "norm": (config.norm, {"affine": True}),
        "act": _ACT[config.act] if config.act != "prelu" else "RELU",
    }
