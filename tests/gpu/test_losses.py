"""Losses on the card: the host's values and gradients, no wait for a value, capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hasten.nets.losses.deep_supervision import DeepSupervisionLoss
from hasten.nets.losses.modules import DiceLoss
from hasten.nets.losses.regions import RegionLoss
from tests.gpu.graphs import captured, no_sync
from tests.nets.losses.test_modules import ALL, INDEX, index_of, scores_of

OVERLAPPING = ((1, 2), (2,), (0, 1))
EVERY = [
    *ALL,
    *(RegionLoss(DiceLoss(batch=True, **INDEX), OVERLAPPING, second=second) for second in (None, "entropy", "focal")),
]
every_loss = pytest.mark.parametrize("loss", EVERY, ids=lambda loss: type(loss).__name__)


def batch() -> tuple[Tensor, Tensor]:
    return scores_of(3, 2, 3, [24, 20, 16], 2.0), index_of(1, 2, 3, [24, 20, 16])


@every_loss
def test_the_card_finds_what_the_host_does(loss: nn.Module) -> None:
    scores, target = batch()
    there = scores.detach().cuda().requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = loss(there, target.cuda())
    wanted = loss(scores, target)
    assert torch.allclose(value.cpu(), wanted, rtol=1e-5, atol=1e-6)
    value.backward()
    wanted.backward()
    assert there.grad is not None
    assert scores.grad is not None
    assert torch.allclose(there.grad.cpu(), scores.grad, rtol=1e-4, atol=1e-7)


@every_loss
def test_it_waits_for_no_value(loss: nn.Module) -> None:
    scores, target = (side.detach().cuda() for side in batch())
    scores.requires_grad_()
    deep = DeepSupervisionLoss(loss)
    deep([scores, scores[..., ::2, ::2, ::2]], target).backward()
    with no_sync():
        deep([scores, scores[..., ::2, ::2, ::2]], target).backward()


@every_loss
def test_it_is_captured_in_a_graph(loss: nn.Module) -> None:
    scores, target = (side.detach().cuda() for side in batch())
    scores.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(scores, target)
        return value.detach(), torch.autograd.grad(value, scores)[0]

    graph, (value, gradient) = captured(step)
    with torch.no_grad():
        scores.mul_(0.5)
    graph.replay()
    wanted, slope = step()
    assert torch.allclose(value, wanted, rtol=1e-5)
    assert torch.allclose(gradient, slope, rtol=1e-4, atol=1e-7)
