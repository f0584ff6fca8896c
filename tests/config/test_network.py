"""Settings of the section `network` that exclude each other."""

from __future__ import annotations

import pytest

from hasten.config.check import check_run
from hasten.config.load import load_run

OWN = "network.name=nets.py:Net"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["network.name=unett"], "network.name: must be unet, .*FILE.py:NAME or package"),
        (["network.name=swin_unetr"], r"did you mean swinunetr\?"),
        (["network.name='nets.py:'"], "network.name: must be unet"),
        (["network.args={width: 3}"], "network.args: is for a network of your own; .*name yours"),
        (["network.divisor=[2,2,2]"], "network.divisor: is for a network of your own"),
        (["network.digest=abc"], "network.digest: is for a network of your own"),
        ([OWN, "network.channels=[4,8]"], "network.channels: is a setting of the built-in networks"),
        ([OWN, "network.norm=batch"], "network.norm: is a setting of the built-in networks"),
        (["network.name=plainconvunet", "network.blocks=[1,0]"], r"network.blocks\[1\]: must be 1 or more"),
        (
            ["network.name=dynunet", "network.kernel_size=[[3,3,2]]"],
            r"network.kernel_size: .*odd .*\(given \[\[3, 3, 2\]\]\)",
        ),
        ([OWN, "network.dropout=0.1"], "leave it out, or give it to your code by network.args"),
        ([OWN, "network.args={patch: 3}"], "network.args.patch: is given by the run; leave it out"),
        ([OWN, "network.args={a b: 3}"], "network.args: 'a b' is not a parameter's name; remove it"),
        ([OWN, "network.args={width: .nan}"], "network.args.width: .*finite numbers, true, false, texts"),
        ([OWN, "network.divisor=[0,1,1]"], r"network.divisor\[0\]: must be 1 or more \(given 0\)"),
    ],
)
def test_what_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raise ValueError("\n".join(check_run(load_run(None, settings))))
