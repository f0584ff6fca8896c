"""States of torch's generators, kept and restored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hasten.nets.random_state import all_random_states_kept, random_state_kept
from hasten.nets.surgery.dataflow import see_flow


@pytest.mark.parametrize("kept", [random_state_kept, all_random_states_kept])
@pytest.mark.parametrize("name", ["cpu", "meta"])
def test_the_hosts_state_is_kept_whatever_the_device(kept: object, name: str) -> None:
    assert callable(kept)
    before = torch.get_rng_state()
    with kept(torch.device(name)):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


class Plain(nn.Module):
    """A network without parameters."""

    def forward(self, image: Tensor) -> Tensor:
        return image + torch.rand(1)


def test_a_network_without_parameters_is_looked_at_without_drawing() -> None:
    before = torch.get_rng_state()
    see_flow(Plain(), torch.zeros(1, 1, 4, 4))
    assert torch.equal(torch.get_rng_state(), before)
