"""What each built-in network has, and what is said of a setting that it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.config.load import load_run
from hasten.config.networks import network_mistake
from hasten.config.settled import PlannedNetwork


def test_a_setting_that_a_network_does_not_have_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"network\.dropout: network\.name=mednext .*leave it out, or use one of unet"):
        load_run(None, ["network.name=mednext", "network.dropout=0.1"])
    assert load_run(None, ["network.name=unet", "network.dropout=0.1"]).network.dropout == 0.1


TWOS = ((2, 2, 2),) * 2


@pytest.mark.parametrize(
    ("settings", "dims", "words"),
    [
        ({"name": "mednext", "channels": (4, 8, 8), "strides": TWOS}, 3, ["use [4, 8, 16] with"]),
        ({"name": "mednext", "channels": (4, 8, 16), "strides": TWOS, "deep_supervision": 1}, 3, ["use 2, or 0"]),
        (
            {"name": "swinunetr", "channels": (12, 12, 24), "strides": TWOS},
            3,
            ["use [12, 12, 24, "],
        ),
        ({"name": "swinunetr", "channels": (16, 16, 32), "strides": TWOS}, 3, ["multiples of 12"]),
        ({"name": "plainconvunet", "blocks": (2, 2)}, 3, ["network.blocks: ", "give 3"]),
        ({"name": "dynunet", "kernel_size": ((3, 3, 3),)}, 3, ["network.kernel_size: ", "give 3"]),
        ({"name": "residualencoderunet", "deep_supervision": 2}, 3, ["use 1 or less"]),
        ({"name": "plainconvunet"}, 2, ["network.strides", "[[1, 2, 2], [1, 2, 2]]"]),
    ],
)
def test_what_a_network_cannot_be(settings: dict[str, Any], dims: int, words: list[str]) -> None:
    usual = {"name": "unet", "channels": (4, 8, 16), "strides": TWOS}
    message = network_mistake(PlannedNetwork(**{**usual, **settings}), dims)
    assert message is not None
    assert "\n" not in message
    assert all(word in message for word in words), message
