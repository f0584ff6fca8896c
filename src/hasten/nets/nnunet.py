"""nnU-Net's two U-Nets. State dicts are those of the package dynamic-network-architectures, both ways.

Its modules are registered under several names (`all_modules`, `decoder.encoder`), and so are these. The plain one is
also MONAI's `DynUNet`, under other names of its weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hasten.config.settled import PlannedNetwork

Sides = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """Settings that all layers of a network share."""

    dims: int
    norm: str
    act: Callable[[], nn.Module]
    dropout: float = 0.0

    def of(self, kind: str) -> Any:
        """torch's layer of that kind, such as "Conv", in this many dimensions."""
        return getattr(nn, f"{kind}{self.dims}d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A resolution of a network."""

    channels: int
    kernel: Sides
    stride: Sides
    """Into this level, from the next finer one."""
    blocks: int
    """Convolutions, or residual blocks."""


class ConvNormAct(nn.Module):
    """A same-padded convolution, then dropout, norm and activation: (B, inputs, *S) to (B, outputs, *S / stride)."""

    def __init__(
        self,
        layers: Layers,
        inputs: int,
        outputs: int,
        kernel: Sides,
        stride: Sides,
        plain: bool = False,
        bias: bool = True,
    ) -> None:
        """plain: without dropout and activation."""
        super().__init__()
        padding = [(side - 1) // 2 for side in kernel]
        self.conv = layers.of("Conv")(inputs, outputs, kernel, stride, padding, bias=bias)
        if layers.dropout > 0 and not plain:
            self.dropout = layers.of("Dropout")(layers.dropout)
        self.norm = layers.of("InstanceNorm" if layers.norm == "instance" else "BatchNorm")(outputs, affine=True)
        if not plain:
            self.nonlin = layers.act()
        self.all_modules = nn.Sequential(*self.children())

    def forward(self, image: Tensor) -> Tensor:
        return self.all_modules(image)


class ResidualBlock(nn.Module):
    """Two convolutions and a skip, which is pooled and projected as ResNet-D does (`BasicBlockD`).

    (B, inputs, *S) to (B, outputs, *S / stride).
    """

    def __init__(self, layers: Layers, inputs: int, outputs: int, kernel: Sides, stride: Sides) -> None:
        super().__init__()
        ones = (1,) * layers.dims
        self.conv1 = ConvNormAct(layers, inputs, outputs, kernel, stride)
        self.conv2 = ConvNormAct(layers, outputs, outputs, kernel, ones, plain=True)
        self.nonlin2 = layers.act()
        skip: list[nn.Module] = [layers.of("AvgPool")(stride, stride)] if stride != ones else []
        if inputs != outputs:
            skip.append(ConvNormAct(layers, inputs, outputs, ones, ones, plain=True, bias=False))
        self.skip = nn.Sequential(*skip)

    def forward(self, image: Tensor) -> Tensor:
        return self.nonlin2(self.conv2(self.conv1(image)) + self.skip(image))


class Stack(nn.Module):
    """The blocks of a level in a row, the first with its stride; each kind has its name in nnU-Net's state dicts.

    (B, inputs, *S) to (B, channels of the level, *S / stride).
    """

    def __init__(self, kind: type[ConvNormAct | ResidualBlock], layers: Layers, inputs: int, level: Level) -> None:
        super().__init__()
        self.name, width, ones = "convs" if kind is ConvNormAct else "blocks", level.channels, (1,) * layers.dims
        first = kind(layers, inputs, width, level.kernel, level.stride)
        blocks = [first, *(kind(layers, width, width, level.kernel, ones) for _ in range(level.blocks - 1))]
        self.add_module(self.name, nn.Sequential(*blocks))

    def forward(self, image: Tensor) -> Tensor:
        return getattr(self, self.name)(image)


class Encoder(nn.Module):
    """The features of every level, finest first: (B, inputs, *S) to (B, channels of the level, ...) for each."""

    def __init__(self, layers: Layers, inputs: int, levels: Sequence[Level], *, residual: bool) -> None:
        super().__init__()
        if residual:
            self.stem = Stack(ConvNormAct, layers, inputs, replace(levels[0], blocks=1))
            inputs = levels[0].channels
        before = [inputs, *(level.channels for level in levels)]
        kind = ResidualBlock if residual else ConvNormAct
        stacks = [Stack(kind, layers, width, level) for width, level in zip(before, levels, strict=False)]
        self.stages = nn.ModuleList(stacks if residual else map(nn.Sequential, stacks))

    def forward(self, image: Tensor) -> list[Tensor]:
        image = self.stem(image) if hasattr(self, "stem") else image
        features = []
        for stage in self.stages:
            image = stage(image)
            features.append(image)
        return features


class Decoder(nn.Module):
    """Computes scores from the features of every level, the finest and in training `heads` coarser ones too.

    Features are (B, channels of the level, ...), finest first; scores (B, outputs, ...), in a list where there are
    coarser ones.
    """

    def __init__(
        self, encoder: Encoder, layers: Layers, outputs: int, levels: Sequence[Level], *, blocks: int, heads: int
    ) -> None:
        super().__init__()
        self.heads = heads
        self.encoder = encoder  # not called, but its weights have these names too
        ones = (1,) * layers.dims
        self.stages, self.transpconvs, self.seg_layers = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for number in reversed(range(len(levels) - 1)):
            level, coarser = levels[number], levels[number + 1]
            width, stride = level.channels, coarser.stride
            self.stages.append(Stack(ConvNormAct, layers, 2 * width, replace(level, stride=ones, blocks=blocks)))
            self.transpconvs.append(layers.of("ConvTranspose")(coarser.channels, width, stride, stride))
            head = layers.of("Conv")(width, outputs, 1)
            # nnU-Net keeps a head at every level; those without a loss are not trained.
            self.seg_layers.append(head.requires_grad_(number <= heads))

    def forward(self, features: Sequence[Tensor]) -> Tensor | list[Tensor]:
        image, outputs = features[-1], list[Tensor]()
        heads = self.heads if self.training else 0
        for number, (stage, up, head) in enumerate(zip(self.stages, self.transpconvs, self.seg_layers, strict=True)):
            image = stage(torch.cat([up(image), features[-2 - number]], 1))
            if number >= len(self.stages) - 1 - heads:
                outputs.insert(0, head(image))
        return outputs if heads else outputs[0]


class NnUNet(nn.Module):
    """`PlainConvUNet`, or with `residual` `ResidualEncoderUNet`, of dynamic-network-architectures.

    (B, inputs, *sides) to scores (B, outputs, *sides); with deep supervision, in training, a list of them, finest
    first. levels: finest first. Weights are initialized as in nnU-Net: by He, and the last norm of a residual branch
    to 0.
    """

    def __init__(
        self, layers: Layers, inputs: int, outputs: int, levels: Sequence[Level], *, residual: bool, heads: int = 0
    ) -> None:
        """heads: coarser levels that have scores of their own in training (deep supervision)."""
        super().__init__()
        self.encoder = Encoder(layers, inputs, levels, residual=residual)
        blocks = 1 if residual else 2
        self.decoder = Decoder(self.encoder, layers, outputs, levels, blocks=blocks, heads=heads)
        self.apply(_initialize)

    def forward(self, image: Tensor) -> Tensor | list[Tensor]:
        return self.decoder(self.encoder(image))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(module.weight, a=1e-2)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ResidualBlock):
        nn.init.zeros_(module.conv2.norm.weight)


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
