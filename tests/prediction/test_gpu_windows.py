"""Batches and graphs of windows, with stand-ins for passes on a GPU and for CUDA, which runs what a graph replays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.prediction import model
from hasten.prediction.model import GraphedNetwork, best_batch
from tests.training.test_capture import FakeStream

CPU = torch.device("cpu")
GIB = 2**30


@pytest.mark.parametrize(
    ("fixed", "free", "most", "count"),
    [(0.0, 400, 64, 1), (7.0, 400, 64, 64), (0.4, 400, 64, 4), (7.0, 32, 64, 8), (7.0, 400, 8, 8), (7.0, 1, 64, 1)],
    ids=["no gain", "the most", "gain ends", "memory of 8", "out of memory", "one window always"],
)
def test_a_batch_is_doubled_while_it_gains_and_fits(fixed: float, free: int, most: int, count: int) -> None:
    def trial(size: int) -> tuple[float, int]:
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (fixed + size) / 1e3, size * GIB

    assert best_batch(trial, free * GIB) == count


class Net(nn.Module):
    """Counts its passes, and gives its full-size output first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.passes = nn.Conv3d(1, 2, 3, padding=1), 0

    def forward(self, image: Tensor) -> list[Tensor]:
        self.passes += 1
        return [self.conv(image), image]


class SizedStream(FakeStream):
    """Of a result that is no scalar."""

    def capture(self, body: Any) -> tuple[Any, Tensor]:
        result = torch.zeros(body().shape)
        graph, _ = super().capture(body)
        graph.result = result
        return graph, result


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[SizedStream]:
    class Own(SizedStream):
        pass

    monkeypatch.setattr(model, "SideStream", Own)
    monkeypatch.setattr(model, "certainly_faster", lambda *given, **more: True)
    return Own


def images(count: int, size: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(1, 1, size, size, size, generator=generator) for _ in range(count)]


@torch.inference_mode()
def scores(graphed: GraphedNetwork, batches: list[Tensor]) -> list[Tensor]:
    return [graphed(batch) for batch in batches]


def assert_same(net: Net, result: list[Tensor], batches: list[Tensor]) -> None:
    with torch.no_grad():
        for each, batch in zip(result, batches, strict=True):
            torch.testing.assert_close(each, net.conv(batch))


def test_each_shape_has_a_graph_after_its_warm_up(stand_in: type[SizedStream]) -> None:
    net, batches = Net(), [*images(6), *images(5, 4)]
    graphed = GraphedNetwork(net, CPU)
    assert_same(net, scores(graphed, batches), batches)
    assert [graph is not None for graph in graphed._graphs.values()] == [True, True]


def test_results_stay_when_the_graph_is_replayed(stand_in: type[SizedStream]) -> None:
    graphed, batches = GraphedNetwork(Net(), CPU), images(5)
    *_, first = scores(graphed, batches[:4])
    before = first.clone()
    scores(graphed, batches[4:])
    assert torch.equal(first, before)


@pytest.mark.parametrize("what", ["capture", "values", "time"])
def test_without_a_graph_where_it_does_not_work(
    stand_in: type[SizedStream], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level("INFO")
    if what == "capture":
        stand_in.error = RuntimeError("operation not permitted when stream is capturing")
    elif what == "values":
        stand_in.spoil = 2.0
    else:
        monkeypatch.setattr(model, "certainly_faster", lambda *given, **more: False)
    net, batches = Net(), images(7)
    graphed = GraphedNetwork(net, CPU)
    assert_same(net, scores(graphed, batches), batches)
    assert list(graphed._graphs.values()) == [None]
    reasons = {"capture": "operation not permitted", "values": "gives other scores", "time": "is not faster"}
    [message] = caplog.messages
    assert reasons[what] in message
    before = net.passes
    assert_same(net, scores(graphed, batches), batches)
    assert net.passes == before + len(batches)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    device = torch.device("cuda")
    net = Net().to(device)
    batches = [batch.to(device) for batch in images(8, 32)]
    graphed = GraphedNetwork(net, device)
    assert_same(net, scores(graphed, batches), batches)
    assert len(graphed._graphs) == 1
