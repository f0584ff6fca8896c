"""A network of the user's own: what it is given, what its sides must be multiples of, and what is refused, and how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hasten.config.schema import NetworkConfig
from hasten.nets.custom_network import (
    CustomNetwork,
    check_custom_network,
    custom_network,
    decides_by_values,
    find_divisor,
)

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

def conv(dims):
    return nn.Conv2d if dims == 2 else nn.Conv3d

class Plain(nn.Module):
    def __init__(self, in_channels, out_channels, spatial_dims):
        super().__init__()
        self.conv = conv(spatial_dims)(in_channels, out_channels, 3, padding=1)

    def forward(self, x):
        return self.conv(x)

class Down(nn.Module):
    def __init__(self, in_channels, out_channels, spatial_dims, by=2):
        super().__init__()
        self.down = conv(spatial_dims)(in_channels, 4, by, by)
        self.up = (nn.ConvTranspose2d if spatial_dims == 2 else nn.ConvTranspose3d)(4, out_channels, by, by)

    def forward(self, x):
        return self.up(self.down(x)) + x[:, :1]

class Positions(Plain):
    def __init__(self, in_channels, out_channels, spatial_dims, *, patch):
        super().__init__(in_channels, out_channels, spatial_dims)
        self.positions = nn.Parameter(torch.zeros(*patch))

    def forward(self, x):
        return super().forward(x) + self.positions
"""


def own_of(folder: Path, text: str, name: str, dims: int = 3, digest: str | None = None, **args: Any) -> CustomNetwork:
    path = folder / "nets.py"
    path.write_text(HEAD + text)
    config = NetworkConfig(name=f"{path}:{name}", args=args, digest=digest)
    return custom_network(config, num_channels=2, num_classes=3, spatial_dims=dims)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(
    ("name", "args", "unit"),
    [
        ("Plain", {}, (1, 1, 1)),
        ("Down", {}, (2, 2, 2)),
        ("Down", {"by": [1, 2, 4]}, (1, 2, 4)),
        ("Down", {"by": 16}, (16, 16, 16)),
        ("Down", {"by": 3}, (3, 3, 3)),
        ("Positions", {}, (1, 1, 1)),
    ],
)
def test_the_divisor_is_found_by_trying(
    tmp_path: Path, name: str, args: dict[str, Any], unit: tuple[int, int, int], dims: int
) -> None:
    if dims == 2:
        args, unit = (
            {key: value[1:] if isinstance(value, list) else value for key, value in args.items()},
            (1, *unit[1:]),
        )
    own = own_of(tmp_path, "", name, dims, **args)
    before = torch.get_rng_state()
    assert find_divisor(own) == unit
    check_custom_network(own, (unit[0], 2 * unit[1], 3 * unit[2]), unit)
    assert torch.equal(torch.get_rng_state(), before)
    assert own.asks_for_patch == (name == "Positions")
    if name == "Positions":
        assert own.build((4, 6, 8)[-dims:]).positions.shape == (4, 6, 8)[-dims:]


def test_several_outputs_begin_with_the_full_size(tmp_path: Path) -> None:
    text = """
class Heads(Down):
    def forward(self, x):
        full = super().forward(x)
        return (full, F.avg_pool3d(full, 2)) if self.training else full
"""
    own = own_of(tmp_path, text, "Heads")
    check_custom_network(own, (8, 8, 8), (2, 2, 2))
    turned = own_of(tmp_path, text.replace("(full, F.avg_pool3d(full, 2))", "(F.avg_pool3d(full, 2), full)"), "Heads")
    with pytest.raises(ValueError, match=r"the first of several .*\(2, 3, 4, 4, 4\); scores"):
        check_custom_network(turned, (8, 8, 8), (2, 2, 2))
    other = own_of(tmp_path, text.replace("F.avg_pool3d(full, 2))", "full.mean())"), "Heads")
    with pytest.raises(ValueError, match=r"gives \(\) as one of several outputs in training"):
        check_custom_network(other, (8, 8, 8), (2, 2, 2))


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no such name": ("", "Plane", {}, "has no name Plane; did you mean Plain?"),
    "raises on import": ("x = 1 / 0", "Plain", {}, "nets.py:33: x = 1 / 0: raises ZeroDivisionError"),
    "not callable": ("number = 3", "number", {}, "is a int; name a class, or a function"),
    "built already": ("net = nn.Conv3d(1, 1, 1)", "net", {}, "is a Conv3d; name a class"),
    "no module": ("def make(): return 'net'", "make", {}, "returns a str; let it return an nn.Module with weights"),
    "needs more": (
        "def make(in_channels, img_size): ...", "make", {},
        "positional argument: 'img_size'; correct the file (called with {'in_channels': 2}; see network.args)",
    ),
    "by position": ("def make(in_channels, /): ...", "make", {}, "positional-only arguments passed as keyword"),
    "another argument": ("", "Plain", {"width": 3}, "unexpected keyword argument 'width'"),
    "raises": ("def make(): raise KeyError('no')", "make", {}, "nets.py:33: def make(): raise KeyError('no'): raises"),
    "no weights": ("def make(): return nn.ReLU()", "make", {}, "let it return an nn.Module with weights to train"),
    "forward raises": (
        "class Bad(Plain):\n    def forward(self, x):\n        return self.absent(x)", "Bad", {},
        "nets.py:35: return self.absent(x): raises AttributeError",
    ),
    "forward raises for all sizes": (
        "class Bad(Plain):\n    def forward(self, x):\n        raise RuntimeError('no')", "Bad", {},
        "with an image of (1, 2, 96, 96, 96) ",
    ),
    "too small": (
        "class Bad(Plain):\n    def forward(self, x):\n        return super().forward(x)[..., 1:-1]", "Bad", {},
        "(1, 3, 96, 96, 94); scores of shape (1, 3, 96, 96, 96)",
    ),
    "other channels": (
        "class Bad(Plain):\n    def forward(self, x):\n        return super().forward(x)[:, :2]", "Bad", {},
        "(1, 2, 16, 16, 16); scores of shape (1, 3, 16, 16, 16)",
    ),
    "a dict": (
        "class Bad(Plain):\n    def forward(self, x):\n        return {'out': super().forward(x)}", "Bad", {},
        "a dict; let it return scores of shape (1, 3, 16, 16, 16)",
    ),
    "nothing": ("class Bad(Plain):\n    def forward(self, x):\n        pass", "Bad", {}, "gives a NoneType; let it"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(tmp_path: Path, what: str) -> None:
    text, name, args, message = REFUSED[what]
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        find_divisor(own_of(tmp_path, text, name, **args))
    assert str(raised.value).startswith("network.name")
    assert "nets.py" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_file_and_another_source(tmp_path: Path) -> None:
    config = NetworkConfig(name=f"{tmp_path / 'gone.py'}:Net")
    with pytest.raises(ValueError, match=r"network.name: .*gone.py: can't be read \(No such file"):
        custom_network(config, num_channels=1, num_classes=2, spatial_dims=3)
    digest = own_of(tmp_path, "", "Plain").code.digest
    own_of(tmp_path, "", "Plain", digest=digest)
    with pytest.raises(ValueError, match="its source has changed since the run began"):
        own_of(tmp_path, "# changed", "Plain", digest=digest)


def test_a_network_that_decides_by_values_is_told() -> None:
    class Net(nn.Module):
        def __init__(self, decides: bool) -> None:
            super().__init__()
            self.conv, self.norm, self.decides = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), decides

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.conv(x))
            return y if not self.decides or y.mean() > 0 else -y

    image = torch.zeros(2, 1, 4, 4)
    for decides in (False, True):
        net = Net(decides)
        assert decides_by_values(net, image) == decides
        assert net.norm.num_batches_tracked == 0


def test_a_network_of_monai_by_the_module_that_defines_it() -> None:
    args = {"channels": [4, 8, 8], "strides": [2, 2]}
    config = NetworkConfig(name="monai.networks.nets.attentionunet:AttentionUnet", args=args)
    own = custom_network(config, num_channels=1, num_classes=2, spatial_dims=2)
    assert find_divisor(own) == (1, 4, 4)
    assert own.code.digest
    config = NetworkConfig(name="monai.networks.nets:AttentionUnet", args=args)
    with pytest.raises(ValueError, match=r"in monai.*attentionunet; write monai.*:AttentionUnet"):
        custom_network(config, num_channels=1, num_classes=2, spatial_dims=2)


@pytest.mark.parametrize(
    ("last", "told"), [("x.softmax(1)", "softmax"), ("x.sigmoid()", "sigmoid"), ("x", ""), ("x.log_softmax(1)", "")]
)
def test_a_network_that_gives_probabilities_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, last: str, told: str
) -> None:
    text = f"""
class Own(Plain):
    def forward(self, x):
        x = super().forward(x)
        return {last}
"""
    check_custom_network(own_of(tmp_path, text, "Own"), (8, 8, 8), (1, 1, 1))
    messages = [record.getMessage() for record in caplog.records]
    assert [f"as from a {told} at its end" in message for message in messages] == ([True] if told else [])
