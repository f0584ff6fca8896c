"""nnU-Net's plain U-Net as MONAI's `DynUNet`: the same network with other weight names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor

from hasten.config.settled import PlannedNetwork

_ENCODER = re.compile(r"encoder\.stages\.(\d+)\.0\.convs\.([01])\.(conv|norm)\.(\w+)")
_DECODER = re.compile(r"decoder\.stages\.(\d+)\.convs\.([01])\.(conv|norm)\.(\w+)")
_UP = re.compile(r"decoder\.transpconvs\.(\d+)\.(\w+)")
_HEAD = re.compile(r"decoder\.seg_layers\.(\d+)\.(\w+)")


def dynunet_settings(network: PlannedNetwork) -> PlannedNetwork:
    """Settings of the `dynunet` that computes the same, with `trans_bias`. Raises ValueError where MONAI has none."""
    blocks, kernels = network.blocks or (2,) * len(network.channels), network.kernel_size or ()
    if network.name != "plainconvunet":
        raise ValueError(f"network.name={network.name} is not in MONAI")
    if set(blocks) != {2}:
        raise ValueError(f"MONAI's DynUNet has two convolutions a level, and not network.blocks={list(blocks)}")
    if len(network.strides) < 2:
        raise ValueError(f"MONAI's DynUNet has three levels at least, and network.channels={list(network.channels)}")
    if any(fine > coarse for pair in pairwise(kernels) for fine, coarse in zip(*pair, strict=True)):
        raise ValueError(
            "on its way up MONAI's DynUNet has the kernels of the coarser level, which are smaller in "
            f"network.kernel_size={[list(each) for each in kernels]}"
        )
    return replace(
        network, name="dynunet", num_res_units=0, blocks=None, act=network.act or "leakyrelu", deep_supervision=0
    )


def dynunet_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a `plainconvunet` under the names of `DynUNet`, whose convolutions have no bias.

    The norm after a convolution cancels its bias; a batch norm's mean is shifted by it. In the decoder MONAI's kernels
    (out, in, *S) have the size of the next coarser level: smaller ones are padded with zeros.
    """
    levels = 1 + max(int(match[1]) for match in map(_ENCODER.fullmatch, weights) if match)
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        if match := _ENCODER.fullmatch(name):
            level = int(match[1])
            place = "input_block" if level == 0 else f"downsamples.{level - 1}" if level < levels - 1 else "bottleneck"
        elif match := _DECODER.fullmatch(name):
            place = f"upsamples.{match[1]}.conv_block"
        else:
            if match := _UP.fullmatch(name):
                renamed[f"upsamples.{match[1]}.transp_conv.conv.{match[2]}"] = value
            elif (match := _HEAD.fullmatch(name)) and int(match[1]) == levels - 2:
                renamed[f"output_block.conv.conv.{match[2]}"] = value
            continue
        layer = int(match[2]) + 1
        if match[3] == "norm":
            bias = weights[name.replace(f"norm.{match[4]}", "conv.bias")] if match[4] == "running_mean" else None
            renamed[f"{place}.norm{layer}.{match[4]}"] = value if bias is None else value - bias
        elif match[4] == "weight":
            if place.startswith("upsamples"):
                coarser = weights[f"encoder.stages.{levels - 1 - int(match[1])}.0.convs.0.conv.weight"].shape[2:]
                padding = [(wide - side) // 2 for wide, side in zip(coarser, value.shape[2:], strict=True)]
                value = F.pad(value, [each for side in reversed(padding) for each in (side, side)])
            renamed[f"{place}.conv{layer}.conv.weight"] = value
    return renamed
