"""Chains on the card: the host's batches, no wait for a value, capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from hasten.augment.make_program import CaseSource, make_segment, program_of
from hasten.augment.program import Segment
from hasten.feed.feed import Feed
from tests.augment.examples import EXAMPLES
from tests.augment.test_program import CHAINS, chain, store
from tests.augment.test_value_ops import fitting, images, keys
from tests.gpu.graphs import captured, no_sync


def segment(name: str, dims: int, *, device: str = "cuda", batch_size: int = 5) -> Segment:
    """Of cases that lie on the device."""
    own, cases = chain(dims, *CHAINS[name]), CaseSource(store=store(dims).to(device))
    return make_segment(own, cases, batch_size=batch_size, seed=0, device=device)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dims", [2, 3])
def test_the_card_makes_the_hosts_batches(name: str, dims: int) -> None:
    host, card = segment(name, dims, device="cpu"), segment(name, dims)
    for step, batch in enumerate(Feed(program_of(card), last=3)):
        wanted = host(step)
        assert batch["image"].is_cuda
        assert torch.allclose(batch["image"].cpu(), wanted["image"], rtol=1e-4, atol=5e-3)
        assert (batch["label"].cpu() != wanted["label"]).float().mean() < 1e-4


@pytest.mark.parametrize("name", CHAINS)
def test_a_batch_waits_for_no_value(name: str) -> None:
    own = segment(name, 3)
    own(0)
    with no_sync():
        own(1)


@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: repr(op)[:80])
def test_every_operation_waits_for_no_value_and_agrees_with_the_host(op: object) -> None:
    shape = fitting(op, (2, 9, 12, 8))  # type: ignore[arg-type]
    image, key = images(3, shape), keys(3)
    wanted = op.apply(image, op.draw(key, shape))  # type: ignore[attr-defined]
    on_card, key_there = image.cuda(), key.cuda()
    op.apply(on_card, op.draw(key_there, shape))  # type: ignore[attr-defined]
    with no_sync():
        result = op.apply(on_card, op.draw(key_there, shape))  # type: ignore[attr-defined]
    assert torch.allclose(result.cpu(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CHAINS)
def test_rendering_is_captured_in_a_graph(name: str) -> None:
    own = segment(name, 3)
    step = torch.arange(5, device="cuda")
    graph, batch = captured(lambda: own.rendered(own.drawn(step)))
    for number in range(3):
        step.copy_(torch.arange(5, device="cuda") + 5 * number)
        graph.replay()
        wanted = own(number)
        assert all(torch.equal(batch[key], wanted[key]) for key in wanted)
