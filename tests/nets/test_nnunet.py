"""nnU-Net's networks are those of the package dynamic-network-architectures, as recorded and as installed."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from typing import Any

import monai.networks.nets
import pytest
import torch
from torch import nn

from hasten.config.schema import LossConfig, NetworkConfig
from hasten.config.settled import PlannedNetwork
from hasten.nets.build import build_loss, build_network, monai_network
from hasten.nets.nnunet import dynunet_settings, dynunet_weights
from tests.nets.nnunet_examples import (
    CHANNELS,
    CLASSES,
    EXAMPLES,
    FEATURES,
    KERNELS,
    RECORDED,
    STRIDES,
    digest,
    fill,
    image_of,
    shapes,
    theirs,
)

NAMES = {False: "plainconvunet", True: "residualencoderunet"}
installed = pytest.mark.skipif(
    importlib.util.find_spec("dynamic_network_architectures") is None, reason="dynamic-network-architectures is absent"
)


def ours(
    *, residual: bool, dims: int, blocks: tuple[int, ...] | None, norm: str = "instance", dropout: float = 0.0,
    heads: int = 1,
) -> nn.Module:  # fmt: skip
    config = NetworkConfig(
        name=NAMES[residual], channels=FEATURES, kernel_size=KERNELS, blocks=blocks, dropout=dropout,
        strides=STRIDES if dims == 3 else tuple((1, *stride[1:]) for stride in STRIDES),  # type: ignore[misc]
        norm=norm, deep_supervision=heads,  # type: ignore[arg-type]
    )  # fmt: skip
    return build_network(config, num_channels=CHANNELS, num_classes=CLASSES, spatial_dims=dims)


def recorded(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RECORDED.read_text())[name]
    return result


@pytest.mark.parametrize("name", EXAMPLES)
def test_names_shapes_and_outputs_are_those_recorded(name: str) -> None:
    network, wanted = fill(ours(**EXAMPLES[name])), recorded(name)
    assert shapes(network) == wanted["shapes"]
    assert list(shapes(network)) == list(wanted["shapes"])
    image = image_of(EXAMPLES[name]["dims"])
    if wanted["training"]:
        heads = network.train()(image)
        assert len(heads) == len(wanted["training"])
        for head, numbers in zip(heads, wanted["training"], strict=True):
            assert digest(head) == pytest.approx(numbers, rel=1e-4, abs=1e-6)
    assert digest(network.eval()(image)) == pytest.approx(wanted["evaluation"], rel=1e-4, abs=1e-6)


@installed
@pytest.mark.parametrize("residual", [False, True])
def test_a_seed_draws_weights_of_the_same_spread(residual: bool) -> None:
    blocks = (1, 3, 4) if residual else (2, 2, 2)
    settings = {"residual": residual, "dims": 3}
    one, other = theirs(**settings, blocks=blocks).state_dict(), ours(**settings, blocks=None).state_dict()  # type: ignore[arg-type]
    assert one.keys() == other.keys()  # the blocks are nnU-Net's where none are given
    for name, value in one.items():
        if value.numel() > 500:
            assert other[name].std().item() == pytest.approx(value.std().item(), rel=0.15), name
        elif value.ndim == 1:
            assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("heads", [0, 1])
def test_outputs_that_the_loss_does_not_look_at_are_not_trained(residual: bool, heads: int) -> None:
    network = ours(residual=residual, dims=2, blocks=None, heads=heads).train()
    output = network(image_of(2))
    assert [tuple(head.shape) for head in (output if heads else [output])] == [
        (2, CLASSES, side, side) for side in (8, 4)[: 1 + heads]
    ]
    build_loss(LossConfig())(output, torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).backward()
    idle = {name for name, value in network.named_parameters() if value.grad is None}
    assert idle == (set() if heads else {"decoder.seg_layers.0.weight", "decoder.seg_layers.0.bias"})
    assert idle == {name for name, value in network.named_parameters() if not value.requires_grad}


PLAIN = PlannedNetwork(
    name="plainconvunet", channels=(4, 8, 8, 12), strides=((1, 2, 2), (2, 2, 2), (2, 2, 1)),
    kernel_size=((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
)  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"norm": "batch"}, {"deep_supervision": 2, "act": "relu", "dropout": 0.1}])
def test_the_same_scores(settings: dict[str, Any]) -> None:
    config = replace(PLAIN, **settings)
    torch.manual_seed(0)
    ours = build_network(config, num_channels=2, num_classes=3, spatial_dims=3).double().eval()
    with torch.no_grad():
        for value in (*ours.parameters(), *ours.buffers()):
            if value.is_floating_point():
                value.add_(0.2 * torch.rand_like(value))
    dynunet = dynunet_settings(config)
    assert dynunet is not None
    name, arguments = monai_network(dynunet, 2, 3, 3)
    theirs = getattr(monai.networks.nets, name)(**arguments, trans_bias=True).double().eval()
    weights = dynunet_weights(ours.state_dict())
    assert weights.keys() == {key for key in theirs.state_dict() if not key.startswith("skip_layers.")}
    theirs.load_state_dict(weights, strict=False)
    image = torch.rand(2, 2, 8, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(theirs(image), ours(image), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "residualencoderunet"}, "network.name=residualencoderunet is not in MONAI"),
        ({"blocks": (1, 2, 2, 2)}, r"two convolutions a level, and not network.blocks=\[1, 2, 2, 2\]"),
        (
            {"kernel_size": ((3, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3))},
            r"smaller in network.kernel_size=\[\[3, 3, 3\], ",
        ),
        ({"channels": (4, 8), "strides": ((2, 2, 2),)}, r"three levels at least, and network.channels=\[4, 8\]"),
    ],
)
def test_what_monai_does_not_have(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dynunet_settings(replace(PLAIN, **settings))
