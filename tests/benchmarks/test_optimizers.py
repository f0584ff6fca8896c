"""The peers' loops that the optimizer benchmark writes anew compute what they are said to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.engines.optimizers import (
    peer_lamb,
    peer_lars,
)
from hasten.optim.lamb import Lamb
from hasten.optim.lars import Lars


def _network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.PReLU(), nn.Conv3d(4, 8, 3), nn.Conv3d(8, 2, 1))
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


@pytest.mark.parametrize(
    ("peer", "ours"),
    [
        (peer_lamb, lambda net: Lamb(net.parameters(), lr=0.01, weight_decay=0.1, max_grad_norm=1.0)),
        (peer_lars, lambda net: Lars(net.parameters(), lr=0.01, weight_decay=0.1)),
    ],
)
def test_a_peers_loop_is_its_optimizer(
    peer: Callable[..., Callable[[], object]], ours: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    net, other = _network(), _network()
    step, optimizer = peer(other, lr=0.01, weight_decay=0.1), ours(net)
    for _ in range(5):
        step()
        # Ours may use the gradients up.
        for parameter, kept in zip(net.parameters(), other.parameters(), strict=True):
            assert kept.grad is not None
            parameter.grad = kept.grad.clone()
        optimizer.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-4, atol=1e-6)
