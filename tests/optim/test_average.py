from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.optim.average import NetworkTensors, average_of, average_share, update_average


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.PReLU(), nn.Conv3d(4, 2, 1))


def disturb(net: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("last", [False, True])
def test_the_average_is_the_one_by_hand(decay: float, last: bool) -> None:
    net = network().to(memory_format=torch.channels_last_3d if last else torch.contiguous_format)  # type: ignore[call-overload]
    average = average_of(net)
    wanted = [parameter.detach().double() for parameter in net.parameters()]
    strides = [parameter.stride() for parameter in net.parameters()]
    for step in range(60):
        disturb(net, step)
        update_average(NetworkTensors.of(average), NetworkTensors.of(net), average_share(step, decay))
        keep = min(decay, (1 + step) / (10 + step))
        wanted = [
            keep * old + (1 - keep) * new.detach().double() for old, new in zip(wanted, net.parameters(), strict=True)
        ]
    for result, value, stride in zip(average.parameters(), wanted, strides, strict=True):
        assert torch.allclose(result.double(), value, rtol=1e-4, atol=1e-4)
        assert result.stride() == stride
    assert average[0].weight.is_contiguous(memory_format=torch.channels_last_3d) == last  # type: ignore[index, union-attr]


def test_the_memory_grows_to_its_limit() -> None:
    shares = []
    for step in (0, 1, 10, 100, 1000, 100_000):
        net = nn.Linear(1, 1, bias=False)
        average = average_of(net)
        nn.init.zeros_(average.weight)
        nn.init.ones_(net.weight)
        update_average(NetworkTensors.of(average), NetworkTensors.of(net), average_share(step, 0.99))
        shares.append(average.weight.item())
    assert shares[0] == pytest.approx(0.9)
    assert shares == sorted(shares, reverse=True)
    assert shares[-2:] == pytest.approx([0.01, 0.01])


def test_buffers_are_copied_and_stay_their_own() -> None:
    net = network().train()
    average = average_of(net)
    net(torch.randn(2, 2, 4, 4, 4))
    assert not torch.equal(average[1].running_mean, net[1].running_mean)  # type: ignore[index, union-attr]
    update_average(NetworkTensors.of(average), NetworkTensors.of(net), 0.1)
    for result, own in zip(average.buffers(), net.buffers(), strict=True):
        assert torch.equal(result, own)
        assert result.data_ptr() != own.data_ptr()


class Replacing(nn.Module):
    """Replaces its buffer instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("unused", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + x.detach()
        return x * self.weight


def test_a_buffer_that_a_module_replaces_is_copied() -> None:
    net = Replacing()
    average = average_of(net)
    mine, its = NetworkTensors.of(average), NetworkTensors.of(net)
    for _ in range(2):
        net(torch.ones(2))
        update_average(mine, its, 0.1)
        assert torch.equal(average.seen, net.seen)  # type: ignore[arg-type]


def test_a_share_on_the_device_is_the_same_share() -> None:
    net = network()
    one, other = average_of(net), average_of(net)
    disturb(net, 1)
    update_average(NetworkTensors.of(one), NetworkTensors.of(net), 0.3)
    update_average(NetworkTensors.of(other), NetworkTensors.of(net), torch.tensor(0.3))
    for result, wanted in zip(other.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(result, wanted)
