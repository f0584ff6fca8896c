"""nnU-Net's plain U-Net as MONAI's DynUNet: the same scores from the same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import monai.networks.nets
import pytest
import torch

from hasten.config.settled import PlannedNetwork
from hasten.nets.build import build_network, monai_network
from hasten.nets.dynunet import dynunet_settings, dynunet_weights

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
