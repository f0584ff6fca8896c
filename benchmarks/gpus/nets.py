"""The networks that are stepped, with their batches, and the operations that a patch costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hasten.config.schema import NetworkConfig
from hasten.nets.build import build_network


@dataclass(frozen=True, kw_only=True, slots=True)
class Net:
    network: NetworkConfig
    side: int
    """Of the cubic patch, in voxels."""
    num_classes: int
    batch: int
    """Patches a step, on a card of 60 GiB or more."""
    small_batch: int
    """The same on a smaller card."""
    about: str

    @property
    def voxels(self) -> int:
        return self.side**3


NETS = {
    "mlperf": Net(
        network=NetworkConfig(
            name="dynunet", channels=(32, 64, 128, 256, 320, 320), strides=((2, 2, 2),) * 5, num_res_units=0,
            norm="instance", act="relu",
        ),
        side=128, num_classes=3, batch=7, small_batch=2,
        about="MONAI's DynUNet with the widths of MLPerf Training's unet3d (32, 64, 128, 256, 320 and a bottleneck of "
        "320), instance norm, ReLU, no biases before norms, transposed convolutions; 128^3, 1 channel, 3 classes",
    ),
    "spleen": Net(
        network=NetworkConfig(
            name="unet", channels=(32, 64, 128, 256, 512), strides=((2, 2, 2),) * 4, num_res_units=2, norm="batch",
            act="prelu",
        ),
        side=96, num_classes=2, batch=16, small_batch=4,
        about="MONAI's UNet of its fast spleen tutorial, without its dropout, which would blur what is compared; 96^3",
    ),
    "brats": Net(
        network=NetworkConfig(name="segresnet", channels=(16, 32, 64, 128), strides=((2, 2, 2),) * 3),
        side=128, num_classes=3, batch=2, small_batch=1,
        about="MONAI's SegResNet of its BraTS tutorial, with 1 channel; group norms of 8; 128^3",
    ),
}  # fmt: skip
"""What MLPerf gives to a card at once is 7 patches; the spleen tutorial takes 16."""


def net_named(name: str, *, quick: bool) -> Net:
    """quick: two levels less and small patches."""
    net = NETS[name]
    if not quick:
        return net
    levels = 4 if name == "mlperf" else 3
    channels = tuple(4 * 2**level for level in range(levels))
    network = replace(net.network, channels=channels, strides=((2, 2, 2),) * (levels - 1))
    return replace(net, network=network, side=16, batch=2, small_batch=2)


def build(net: Net, device: torch.device) -> nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    network = build_network(net.network, num_channels=1, num_classes=net.num_classes, spatial_dims=3)
    return network.to(device).train()


def batch_of(net: Net, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Image (B, 1, S, S, S) float32 and label (B, 1, S, S, S) uint8, random."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (size, 1, net.side, net.side, net.side)
    image = torch.randn(shape, generator=generator, device=device)
    label = torch.randint(0, net.num_classes, shape, generator=generator, device=device, dtype=torch.uint8)
    return image, label


def operations(net: Net) -> int:
    """Floating point operations of convolutions and products for one patch, forward and backward, 2 a multiply-add."""
    network = build(net, torch.device("cpu")).to("meta")
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(2, 1, net.side, net.side, net.side, device="meta")).sum().backward()
    return counter.get_total_flops() // 2
