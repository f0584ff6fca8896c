"""What each built-in network has, and what is said of a setting that it does not have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hasten.config.load import load_run
from hasten.config.networks import NETWORKS, SETTINGS, network_mistake
from hasten.config.settled import PlannedNetwork

OTHER: dict[str, str] = {
    "num_res_units": "1",
    "blocks": "[1, 1, 1, 1, 1, 1]",
    "kernel_size": "[[3,3,3],[3,3,3],[3,3,3]]",
    "norm": "batch",
    "act": "relu",
    "dropout": "0.1",
    "deep_supervision": "1",
}
"""A value of each setting that is not its default."""


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_taken_or_refused_in_one_line(name: str, setting: str) -> None:
    settings = [f"network.name={name}", f"network.{setting}={OTHER[setting]}"]
    if setting in NETWORKS[name].settings:
        assert load_run(None, settings).network.name == name
        return
    with pytest.raises(ValueError) as raised:
        load_run(None, settings)
    [line] = str(raised.value).splitlines()
    having = ", ".join(other for other in NETWORKS if setting in NETWORKS[other].settings)
    assert re.search(rf"network\.{setting}: network\.name={name} .*leave it out, ", line)
    assert line.endswith(f"or use one of {having}")


TWOS = ((2, 2, 2),) * 2


@pytest.mark.parametrize(
    ("settings", "dims", "words"),
    [
        ({"name": "mednext", "channels": (4, 8, 8), "strides": TWOS}, 3, ["mednext doubles", "use [4, 8, 16] with"]),
        ({"name": "mednext", "channels": (4, 8, 16), "strides": TWOS, "deep_supervision": 1}, 3, ["use 2, or 0"]),
        (
            {"name": "swinunetr", "channels": (12, 12, 24), "strides": TWOS},
            3,
            ["6 levels", "use [12, 12, 24, "],
        ),
        ({"name": "swinunetr", "channels": (16, 16, 32), "strides": TWOS}, 3, ["multiples of 12"]),
        ({"name": "plainconvunet", "blocks": (2, 2)}, 3, ["network.blocks: 2 for 3 levels", "give 3"]),
        ({"name": "dynunet", "kernel_size": ((3, 3, 3),)}, 3, ["network.kernel_size: 1 for 3 levels", "give 3"]),
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
