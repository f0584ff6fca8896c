"""The built-in UNet is MONAI's: the same weights from the same seed, the same scores, strict loading both ways."""

from __future__ import annotations

import monai.networks.nets
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.config.settled import PlannedNetwork
from hasten.nets.build import build_network, divisor, monai_network


@settings(deadline=None, max_examples=40)
@given(data=st.data(), dims=st.sampled_from([2, 3]), levels=st.integers(2, 4), inputs=st.integers(1, 3))
def test_it_is_monais(data: st.DataObject, dims: int, levels: int, inputs: int) -> None:
    flat, deep = [(1, 2, 2), (1, 1, 1), (1, 1, 2)], [(2, 2, 2), (2, 1, 1), (3, 1, 2)]
    strides = st.sampled_from(flat if dims == 2 else [*flat, *deep])
    config = PlannedNetwork(
        name="unet",
        channels=data.draw(st.tuples(*[st.sampled_from([2, 3, 4])] * levels)),
        strides=data.draw(st.tuples(*[strides] * (levels - 1))),
        num_res_units=data.draw(st.integers(0, 3)),
        norm=data.draw(st.sampled_from(["instance", "batch"])),
        act=data.draw(st.sampled_from([None, "prelu", "relu", "leakyrelu"])),
    )
    torch.manual_seed(0)
    ours = build_network(config, num_channels=inputs, num_classes=2, spatial_dims=dims)
    torch.manual_seed(0)
    name, arguments = monai_network(config, inputs, 2, dims)
    theirs = getattr(monai.networks.nets, name)(**arguments)
    wanted = theirs.state_dict()
    assert list(ours.state_dict()) == list(wanted)
    assert all(torch.equal(value, wanted[key]) for key, value in ours.state_dict().items())
    image = torch.randn(2, inputs, *(2 * side for side in divisor(config)[-dims:]))
    assert torch.equal(ours(image), theirs(image))
    ours.load_state_dict(wanted, strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)


def test_dropout_is_between_norm_and_activation() -> None:
    config = PlannedNetwork(name="unet", channels=(8, 8), strides=((2, 2, 2),), dropout=0.5)
    network = build_network(config, num_channels=1, num_classes=2, spatial_dims=3)
    assert [name for name, _ in network.get_submodule("model.0.conv.unit0.adn").named_children()] == ["N", "D", "A"]
