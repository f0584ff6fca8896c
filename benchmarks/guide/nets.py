"""The networks and steps that the claims are measured with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from benchmarks.host_bytes import HostBytes


def unet(channels: Iterable[int] = (16, 32, 64), *, dims: int = 3, seed: int = 0) -> nn.Module:
    """A MONAI UNet of one channel and two classes, with a residual unit a level."""
    from monai.networks.nets import UNet

    torch.manual_seed(seed)
    widths = tuple(channels)
    return UNet(
        spatial_dims=dims,
        in_channels=1,
        out_channels=2,
        channels=widths,
        strides=(2,) * (len(widths) - 1),
        num_res_units=1,
        norm="batch",
    )


def blocks(width: int, count: int, *, dims: int, bias: bool = False, seed: int = 0) -> nn.Sequential:
    """`count` times convolution 3x3(x3), batch norm, ReLU, all of `width` channels."""
    torch.manual_seed(seed)
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [conv(width, width, 3, padding=1, bias=bias), norm(width), nn.ReLU()]
    return nn.Sequential(*layers)


def values(*shape: int, device: str = "cpu", seed: int = 1) -> Tensor:
    """Normal values that are the same on every machine."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def loss_of(network: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """A loss whose gradient reaches every weight, whatever the norm before it."""
    output = network(image).float()
    return (output * torch.linspace(-1, 1, output[0].numel(), device=output.device).view_as(output[0])).square().mean()


def forward_backward(network: nn.Module, image: Tensor) -> None:
    """Gradients to None, forward, backward."""
    network.zero_grad(set_to_none=True)
    loss_of(network, image).backward()


def gradients(network: nn.Module, image: Tensor) -> list[Tensor]:
    """The gradients of every weight."""
    forward_backward(network, image)
    return [weight.grad.clone() for weight in network.parameters() if weight.grad is not None]


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """`call` so often that a clock can tell."""

    def run() -> None:
        for _ in range(times):
            call()

    return run


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Bytes of tensors that `call` makes, at most at once."""
    if device == "cpu":
        with HostBytes() as counted:
            call()
        return counted.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before
