"""What a network computes for nothing, left out. Parameters keep their names and shapes: checkpoints load both ways."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from hasten.nets.normact import NormAct


@dataclass(frozen=True, slots=True)
class Surgery:
    """What was done to a network."""

    fused: int
    """Blocks of an instance norm and an activation that became one operation."""
    biases: int
    """Convolutions whose bias the instance norm behind them takes away again, and that no longer add it."""


class _Unbiased(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return self._conv_forward(image, self.weight, None)


class _Unbiased3d(nn.Conv3d):
    def forward(self, image: Tensor) -> Tensor:
        return self._conv_forward(image, self.weight, None)


class _UnbiasedTransposed(nn.ConvTranspose2d):
    def forward(self, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        assert output_size is None
        assert isinstance(self.padding, tuple)
        return functional.conv_transpose2d(
            image, self.weight, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class _UnbiasedTransposed3d(nn.ConvTranspose3d):
    def forward(self, image: Tensor, output_size: list[int] | None = None) -> Tensor:
        assert output_size is None
        assert isinstance(self.padding, tuple)
        return functional.conv_transpose3d(
            image, self.weight, None, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


_UNBIASED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: _Unbiased,
    nn.Conv3d: _Unbiased3d,
    nn.ConvTranspose2d: _UnbiasedTransposed,
    nn.ConvTranspose3d: _UnbiasedTransposed3d,
}


def operate(network: nn.Module) -> Surgery:
    """Fuse norms with activations and leave out biases that cancel, in place, in blocks of MONAI's `Convolution`.

    A bias that an instance norm cancels stays a parameter, with the value it has, but is neither added nor trained.
    """
    fused = biases = 0
    for parent in list(network.modules()):
        if not isinstance(parent, nn.Sequential):
            continue
        children = list(parent.named_children())
        for (_, convolution), (name, block) in pairwise(children):
            if not NormAct.takes(block):
                continue
            setattr(parent, name, NormAct(block.get_submodule("N"), block.get_submodule("A")))
            fused += 1
            if type(convolution) in _UNBIASED and isinstance(convolution.bias, nn.Parameter):
                # The class alone changes: parameters, names and hooks are the module's own.
                convolution.__class__ = _UNBIASED[type(convolution)]
                convolution.bias.requires_grad_(False)
                biases += 1
    return Surgery(fused, biases)
