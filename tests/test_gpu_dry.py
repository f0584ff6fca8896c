"""What `make gpu-dry` relies on: the budget of what kernels move, and autograd's backward pass in Python."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.nets.examples import NETWORKS, image_of, network_of
from tools.gpu_dry.backward import backward
from tools.gpu_dry.own import Drifts


def gradients(network: nn.Module, image: Tensor, run: object) -> list[Tensor]:
    network.zero_grad()
    run(network(image).square().mean())  # type: ignore[operator]
    return [weight.grad for weight in network.parameters() if weight.grad is not None]


@pytest.mark.parametrize("name", NETWORKS)
def test_backward_in_python_is_autograds(name: str) -> None:
    network, image = network_of(name, 3), image_of(name, 3)
    wanted, result = (gradients(network, image, run) for run in (Tensor.backward, backward))
    assert len(wanted) == len(result) > 0
    for one, other in zip(wanted, result, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_hand_written_backward_that_changes_the_type_is_an_error() -> None:
    value = torch.ones(3, requires_grad=True)
    with pytest.raises(AssertionError, match="float16"):
        backward(Drifts.apply(value * 1).sum())
