"""The way of a batch from cases on the host to a CUDA device, and batches that are made on the device itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.chain import Batch
from hasten.augment.make_program import program_of
from hasten.augment.program import Segment
from hasten.feed.feed import Feed
from hasten.feed.ring import Ring
from tests.augment.stores import random_store, segment_of
from tests.gpu.graphs import no_sync


def segments(cases_on: str = "cuda") -> tuple[Segment, Segment]:
    """The same batches made on the host, and for the device of cases that lie on `cases_on`."""
    store = random_store([(20, 24, 28), (32, 16, 24), (24, 24, 24)], dtype="float16")
    settings: dict[str, Any] = {
        "foreground_prob": 0.5,
        "flip_prob": (0.5, 0.5, 0.5),
        "affine_prob": 0.5,
        **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
    }
    host = segment_of(store, (16, 16, 16), seed=3, **settings)
    device = segment_of(store.to(cases_on), (16, 16, 16), seed=3, binding={"device": "cuda"}, **settings)
    return host, device


def assert_the_hosts(batch: Batch, wanted: Batch) -> None:
    assert all(value.is_cuda for value in batch.values())
    torch.testing.assert_close(batch["image"].cpu(), wanted["image"], rtol=1e-4, atol=1e-4)
    # A coordinate within rounding of a voxel's border may take either neighbour.
    assert (batch["label"].cpu() != wanted["label"]).float().mean() < 1e-3


def busy(milliseconds: int = 20) -> None:
    """Keep the current stream busy without keeping the host."""
    torch.cuda._sleep(milliseconds * 1_500_000)


def test_a_batch_on_the_device_never_waits_and_is_the_hosts() -> None:
    host, device = segments()
    device(0)
    for step in range(5):
        with no_sync():
            batch = device(step)
        assert_the_hosts(batch, host(step))


def test_batches_begun_on_the_host_are_finished_on_the_device() -> None:
    host, device = segments(cases_on="cpu")
    assert device.prepared_on_host
    assert device.source.stages < len(device.stages)
    for step, batch in enumerate(Feed(program_of(device), first=2, last=8), start=2):
        assert_the_hosts(batch, host(step))


def test_cases_on_the_device_are_read_in_line() -> None:
    _, device = segments()
    device(0)
    threads = threading.active_count()
    batches = []
    with no_sync():
        for batch in Feed(program_of(device), first=2, last=5):
            assert threading.active_count() == threads
            batches.append(batch)
    for step, batch in zip(range(2, 5), batches, strict=True):
        wanted = device(step)
        assert all(torch.equal(batch[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_ring_carries_every_batch_over_unchanged(depth: int) -> None:
    host, _ = segments()
    copies: list[Batch] = []
    for batch in Ring(host.batches(3, 12), torch.device("cuda"), depth=depth):
        assert all(value.is_cuda for value in batch.values())
        # A step that is still at work on the device, long after the host has asked for the next batch.
        busy()
        copies.append({key: value.clone() for key, value in batch.items()})
    for step, batch in zip(range(3, 12), copies, strict=True):
        wanted = host(step)
        assert all(torch.equal(batch[key].cpu(), wanted[key]) for key in wanted)


def test_the_consumer_never_waits_on_the_host() -> None:
    host, _ = segments()
    with no_sync():
        for batch in Ring(host.batches(0, 6), torch.device("cuda")):
            batch["image"].add_(batch["label"])


def test_leaving_early_while_the_device_is_at_work() -> None:
    host, _ = segments()
    kept: Tensor | None = None
    for step, batch in enumerate(Ring(host.batches(0, 1_000_000), torch.device("cuda"))):
        busy(100)
        kept = batch["image"].clone()
        if step == 2:
            break
    del batch
    # The slots' memory may be given away now, but not before the queued clone has read it.
    junk = [torch.full((4, 1, 16, 16, 16), float("nan"), device="cuda") for _ in range(16)]
    assert kept is not None
    assert torch.equal(kept.cpu(), host(2)["image"])
    assert len(junk) == 16
    assert not any(thread.name == "hasten-feed" for thread in threading.enumerate())
