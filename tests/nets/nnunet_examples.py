"""Small networks of nnU-Net as its package builds them, with weights and images that a formula gives.

`python -m tests.nets.nnunet_examples` writes nnunet_networks.json beside this file, from the package
dynamic-network-architectures (`pip install --no-deps dynamic-network-architectures`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RECORDED = Path(__file__).with_name("nnunet_networks.json")
CHANNELS, CLASSES, FEATURES = 2, 3, (4, 6, 8)
KERNELS, STRIDES = ((1, 3, 3), (3, 3, 3), (3, 3, 3)), ((1, 2, 2), (2, 2, 2))
EXAMPLES: dict[str, dict[str, Any]] = {
    "plain 2d": {"residual": False, "dims": 2, "blocks": (2, 2, 2)},
    "plain 3d": {"residual": False, "dims": 3, "blocks": (1, 2, 3), "norm": "batch"},
    "residual 2d": {"residual": True, "dims": 2, "blocks": (1, 2, 1), "norm": "batch"},
    "residual 3d": {"residual": True, "dims": 3, "blocks": (1, 3, 4)},
    "residual 3d dropout": {"residual": True, "dims": 3, "blocks": (1, 1, 1), "dropout": 0.25},
}


def theirs(*, residual: bool, dims: int, blocks: tuple[int, ...], norm: str = "instance", dropout: float = 0.0) -> Any:
    """As nnU-Net builds it: with biases, leaky ReLUs and outputs at all levels but the coarsest."""
    from dynamic_network_architectures.architectures.unet import PlainConvUNet, ResidualEncoderUNet

    kind, name = (ResidualEncoderUNet, "n_blocks_per_stage") if residual else (PlainConvUNet, "n_conv_per_stage")
    end = f"{dims}d"
    network = kind(
        input_channels=CHANNELS, n_stages=len(FEATURES), features_per_stage=FEATURES, conv_op=getattr(nn, f"Conv{end}"),
        kernel_sizes=[kernel[3 - dims :] for kernel in KERNELS],
        strides=[(1,) * dims, *(stride[3 - dims :] for stride in STRIDES)],
        num_classes=CLASSES, n_conv_per_stage_decoder=(1 if residual else 2,) * len(STRIDES), conv_bias=True,
        norm_op=getattr(nn, f"{'BatchNorm' if norm == 'batch' else 'InstanceNorm'}{end}"),
        norm_op_kwargs={"eps": 1e-5, "affine": True}, dropout_op=getattr(nn, f"Dropout{end}") if dropout else None,
        dropout_op_kwargs={"p": dropout} if dropout else None, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True},
        deep_supervision=True, **{name: blocks},
    )  # fmt: skip
    network.apply(network.initialize)
    return network


def fill(network: nn.Module) -> nn.Module:
    """Weights from the order of the parameters alone: a wave of another length in each."""
    with torch.no_grad():
        for number, value in enumerate(network.parameters()):
            wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * (0.7 + 0.01 * number) + number)
            value.copy_((wave / max(1, value[0].numel()) ** 0.5).view(value.shape) + (0.5 if value.ndim == 1 else 0))
    return network


def image_of(dims: int) -> Tensor:
    count = 2 * CHANNELS * 8**dims
    return torch.cos(torch.arange(count, dtype=torch.float64) * 0.13).float().view(2, CHANNELS, *(8,) * dims)


def digest(output: Tensor) -> list[float]:
    """Numbers that a wrong output does not share: moments, and sums with a wave along all its values."""
    flat = output.detach().double().flatten()
    wave = torch.sin(torch.arange(flat.numel(), dtype=torch.float64) * 0.31)
    return [flat.mean().item(), flat.abs().mean().item(), flat.square().mean().item(), (flat * wave).mean().item()]


def shapes(network: nn.Module) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in network.state_dict().items()}


def record(settings: dict[str, Any]) -> dict[str, Any]:
    network, image = fill(theirs(**settings)), image_of(settings["dims"])
    training = [digest(head) for head in network.train()(image)] if not settings.get("dropout") else []
    # nnU-Net too switches its outputs off by hand.
    network.eval().decoder.deep_supervision = False  # type: ignore[union-attr]
    return {"shapes": shapes(network), "training": training, "evaluation": digest(network(image))}


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(record(settings))}" for name, settings in EXAMPLES.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
