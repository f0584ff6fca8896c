"""Networks that the surgery is tried on: MONAI's, and one of a user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from monai.networks.nets import BasicUNet, DynUNet, SegResNet, UNet
from torch import Tensor, nn
from torch.nn import functional

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network


def unet(dims: int, **settings: Any) -> nn.Module:
    return UNet(dims, 1, 4, (4, 8, 16), (2, 2), num_res_units=2, **settings)


def dynunet(dims: int, **settings: Any) -> nn.Module:
    shared = {"filters": (4, 8, 12), "trans_bias": True, "norm_name": ("INSTANCE", {"affine": True})}
    return DynUNet(dims, 1, 3, [3] * 3, [1, 2, 2], [2, 2], **{**shared, **settings})


def built_in(name: str, dims: int, **settings: Any) -> nn.Module:
    strides = ((2, 2, 2) if dims == 3 else (1, 2, 2),) * 2
    config = NetworkConfig(name=name, channels=(4, 8, 16), strides=strides, **settings)
    return build_network(config, num_channels=1, num_classes=3, spatial_dims=dims)


def residual(dims: int, **settings: Any) -> nn.Module:
    """Its residual branches begin as nothing, which hides what is in them; here they do not."""
    network = built_in("residualencoderunet", dims, blocks=(1, 2, 1), **settings)
    for value in network.parameters():
        if not value.any():
            nn.init.uniform_(value)
    return network


class Odd(nn.Module):
    """Control flow that is not known beforehand, shared modules, functions, and a norm that two things use."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        convolution = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        batch = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
        instance = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[dims]
        self.first = convolution(1, 6, 3, padding=1)
        self.norm = instance(6, affine=True)
        self.act = nn.PReLU(6)
        self.steps = nn.ModuleList(convolution(6, 6, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList([batch(6), nn.GroupNorm(3, 6)])
        self.shared = nn.LeakyReLU(0.1)
        self.skip = convolution(6, 6, 1)
        self.seen = instance(6)
        self.unused = nn.ModuleDict({"b": convolution(1, 1, 1), "a": instance(1)})
        self.last = convolution(6, 2, 1)
        self.use_early = False

    def forward(self, image: Tensor) -> Tensor:
        image = self.norm(self.first(image))
        image = image + 0 if self.use_early else self.act(image)
        for number, (step, norm) in enumerate(zip(self.steps, self.norms, strict=True)):
            result = functional.relu(norm(step(image))) if number else self.shared(norm(step(image)))
            image = result + self.skip(image)
        seen = self.seen(image)
        image = self.shared(seen) * torch.sigmoid(seen)
        return self.last(image)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "unet": unet,
    "unet batch": partial(unet, norm="batch", act="RELU"),
    "unet group": partial(unet, norm=("group", {"num_groups": 2}), act=("prelu", {"init": 0.1})),
    "dynunet": dynunet,
    "dynunet deep": partial(dynunet, deep_supervision=True, res_block=True),
    "dynunet batch": partial(dynunet, norm_name="batch", res_block=True),
    "segresnet": lambda dims: SegResNet(dims, 8, 1, 3, blocks_down=(1, 2, 2), blocks_up=(1, 1)),
    "plainconvunet": partial(built_in, "plainconvunet"),
    "plainconvunet batch": partial(built_in, "plainconvunet", norm="batch", act="relu", deep_supervision=0),
    "residualencoderunet": residual,
    "mednext": partial(built_in, "mednext"),
    "basicunet": lambda dims: BasicUNet(dims, 1, 3, (4, 4, 8, 8, 8, 4), norm="batch"),
    "odd": Odd,
}
"""By name, made for 2 or 3 dimensions."""


def network_of(name: str, dims: int) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name](dims)


def image_of(name: str, dims: int) -> Tensor:
    """The smallest that leaves some voxels at the bottom."""
    sides = {2: [16, 16], 3: [8, 8, 16]}[dims]
    if name == "basicunet":
        sides = {2: [32, 32], 3: [16, 16, 32]}[dims]
    return torch.randn(2, 1, *sides, generator=torch.Generator().manual_seed(1))


def layout(dims: int, last: bool) -> torch.memory_format:
    if not last:
        return torch.contiguous_format
    return torch.channels_last_3d if dims == 3 else torch.channels_last


def laid_out(network: nn.Module, image: Tensor, *, last: bool) -> tuple[nn.Module, Tensor]:
    """Copies in a memory format."""
    kind = layout(image.ndim - 2, last)
    twin = copy.deepcopy(network).to(memory_format=kind)  # type: ignore[call-overload]
    return twin, image.contiguous(memory_format=kind)


def trained(network: nn.Module, image: Tensor, *, steps: int, rate: float = 0.01) -> list[float]:
    """Losses of plain steps of gradient descent towards a made-up target."""
    losses = []
    for number in range(steps):
        output = network(image)
        target = torch.randn(output.shape, generator=torch.Generator().manual_seed(number))
        loss = (output - target).square().mean()
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=rate)
        losses.append(loss.item())
    return losses
