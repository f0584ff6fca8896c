"""MONAI's `UNet` without importing MONAI, which takes seconds. Names and initial values of the weights are the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hasten.nets.nnunet import Layers, Sides


class Convolution(nn.Sequential):
    """A convolution of 3 voxels a side, then norm, dropout and activation."""

    def __init__(
        self, layers: Layers, inputs: int, outputs: int, stride: Sides, *, transposed: bool = False, plain: bool = False
    ) -> None:
        """plain: the convolution alone."""
        super().__init__()
        if transposed:
            self.conv = layers.of("ConvTranspose")(inputs, outputs, 3, stride, 1, tuple(side - 1 for side in stride))
        else:
            self.conv = layers.of("Conv")(inputs, outputs, 3, stride, 1)
        if not plain:
            self.adn = nn.Sequential()
            self.adn.add_module("N", layers.of("InstanceNorm" if layers.norm == "instance" else "BatchNorm")(outputs))
            if layers.dropout > 0:
                self.adn.add_module("D", nn.Dropout(layers.dropout))
            self.adn.add_module("A", layers.act())


class ResidualUnit(nn.Module):
    """Convolutions, the first of which has the stride, and beside them one convolution or nothing.

    (B, inputs, *S) to (B, outputs, *S / stride), rounded up.
    """

    def __init__(
        self, layers: Layers, inputs: int, outputs: int, stride: Sides, count: int, *, last_plain: bool = False
    ) -> None:
        super().__init__()
        ones = (1,) * layers.dims
        self.conv = nn.Sequential()
        for number in range(count):
            plain = last_plain and number == count - 1
            unit = Convolution(layers, outputs if number else inputs, outputs, ones if number else stride, plain=plain)
            self.conv.add_module(f"unit{number}", unit)
        self.residual: nn.Module = nn.Identity()
        if stride != ones:
            self.residual = layers.of("Conv")(inputs, outputs, 3, stride, 1)
        elif inputs != outputs:
            self.residual = layers.of("Conv")(inputs, outputs, 1)

    def forward(self, image: Tensor) -> Tensor:
        residual = self.residual(image)
        return self.conv(image) + residual


class SkipConnection(nn.Module):
    """A module's input and output, joined along the channels: (B, C, *S) to (B, C + outputs, *S)."""

    def __init__(self, submodule: nn.Module) -> None:
        super().__init__()
        self.submodule = submodule

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([image, self.submodule(image)], 1)


class UNet(nn.Module):
    """(B, inputs, *S) to (B, outputs, *S). num_res_units: convolutions of a residual unit; 0 has none of these."""

    def __init__(
        self,
        layers: Layers,
        inputs: int,
        outputs: int,
        channels: Sequence[int],
        strides: Sequence[Sides],
        num_res_units: int,
    ) -> None:
        super().__init__()
        self._layers, self._units = layers, num_res_units
        self.model = self._level(inputs, outputs, channels, strides, top=True)

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image)

    def _level(
        self, inputs: int, outputs: int, channels: Sequence[int], strides: Sequence[Sides], *, top: bool
    ) -> nn.Sequential:
        """A level and all below it, built in MONAI's order, on which the initial values depend."""
        width, stride = channels[0], strides[0]
        below: nn.Module
        if len(channels) > 2:
            below, joined = self._level(width, width, channels[1:], strides[1:], top=False), 2 * width
        else:
            below, joined = self._down(width, channels[1], (1,) * self._layers.dims), width + channels[1]
        down = self._down(inputs, width, stride)
        return nn.Sequential(down, SkipConnection(below), self._up(joined, outputs, stride, top=top))

    def _down(self, inputs: int, outputs: int, stride: Sides) -> nn.Module:
        if self._units:
            return ResidualUnit(self._layers, inputs, outputs, stride, self._units)
        return Convolution(self._layers, inputs, outputs, stride)

    def _up(self, inputs: int, outputs: int, stride: Sides, *, top: bool) -> nn.Module:
        plain = top and not self._units
        up = Convolution(self._layers, inputs, outputs, stride, transposed=True, plain=plain)
        if not self._units:
            return up
        unit = ResidualUnit(self._layers, outputs, outputs, (1,) * self._layers.dims, 1, last_plain=top)
        return nn.Sequential(up, unit)
