"""nnU-Net's two U-Nets. State dicts are those of the package dynamic-network-architectures, both ways.

Its modules are registered under several names (`all_modules`, `decoder.encoder`), and so are these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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


class ConvNormAct(nn.Module):
    """A same-padded convolution, then dropout, norm and activation: (B, inputs, *S) to (B, outputs, *S / stride)."""

    def __init__(
        self, layers: Layers, inputs: int, outputs: int, kernel: Sides, stride: Sides, *, plain: bool = False,
        bias: bool = True,
    ) -> None:  # fmt: skip
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
    """`count` blocks in a row, the first of which has the stride. Each kind has its name in nnU-Net's state dicts.

    (B, inputs, *S) to (B, outputs, *S / stride).
    """

    def __init__(
        self, kind: type[ConvNormAct] | type[ResidualBlock], layers: Layers, count: int, inputs: int, outputs: int,
        kernel: Sides, stride: Sides,
    ) -> None:  # fmt: skip
        super().__init__()
        ones = (1,) * layers.dims
        self.name = "convs" if kind is ConvNormAct else "blocks"
        first = kind(layers, inputs, outputs, kernel, stride)
        blocks = [first, *(kind(layers, outputs, outputs, kernel, ones) for _ in range(count - 1))]
        self.add_module(self.name, nn.Sequential(*blocks))

    def forward(self, image: Tensor) -> Tensor:
        return getattr(self, self.name)(image)


class Encoder(nn.Module):
    """The features of every level, finest first: (B, inputs, *S) to (B, channels of the level, ...) for each."""

    def __init__(
        self, layers: Layers, inputs: int, channels: Sequence[int], kernels: Sequence[Sides], strides: Sequence[Sides],
        blocks: Sequence[int], *, residual: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        ones = (1,) * layers.dims
        if residual:
            self.stem = Stack(ConvNormAct, layers, 1, inputs, channels[0], kernels[0], ones)
        before = [channels[0] if residual else inputs, *channels]
        stages: list[nn.Module] = []
        for level, stride in enumerate([ones, *strides]):
            stack = Stack(
                ResidualBlock if residual else ConvNormAct, layers, blocks[level], before[level], channels[level],
                kernels[level], stride,
            )  # fmt: skip
            stages.append(stack if residual else nn.Sequential(stack))
        self.stages = nn.ModuleList(stages)

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
        self, encoder: Encoder, layers: Layers, outputs: int, channels: Sequence[int], kernels: Sequence[Sides],
        strides: Sequence[Sides], *, count: int, heads: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads = heads
        self.encoder = encoder  # not called, but its weights have these names too
        ones = (1,) * layers.dims
        self.stages, self.transpconvs, self.seg_layers = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level in reversed(range(len(strides))):
            width, stride = channels[level], strides[level]
            self.stages.append(Stack(ConvNormAct, layers, count, 2 * width, width, kernels[level], ones))
            self.transpconvs.append(layers.of("ConvTranspose")(channels[level + 1], width, stride, stride))
            head = layers.of("Conv")(width, outputs, 1)
            # nnU-Net keeps a head at every level; those without a loss are not trained.
            self.seg_layers.append(head.requires_grad_(level <= heads))

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
    first. channels, kernels and blocks are per level, finest first, strides between levels; a tuple has `layers.dims`
    sides. Weights are initialized as in nnU-Net: by He, and the last norm of a residual branch to 0.
    """

    def __init__(
        self, layers: Layers, inputs: int, outputs: int, channels: Sequence[int], kernels: Sequence[Sides],
        strides: Sequence[Sides], blocks: Sequence[int] | None = None, *, residual: bool, deep_supervision: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        levels = len(channels)
        if blocks is None:
            blocks = (1, 3, 4, *[6] * levels)[:levels] if residual else (2,) * levels
        self.encoder = Encoder(layers, inputs, channels, kernels, strides, blocks, residual=residual)
        self.decoder = Decoder(
            self.encoder, layers, outputs, channels, kernels, strides, count=1 if residual else 2,
            heads=deep_supervision,
        )  # fmt: skip
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
