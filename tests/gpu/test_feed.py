"""The way of a batch from a host arena to a CUDA device, and the batch program on the device itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from hasten.feed.feed import Feed
from hasten.feed.ring import Ring
from hasten.sample.program import BatchProgram
from tests.sample.arenas import program_of, random_tables

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
Batch = tuple[Tensor, Tensor]


def programs() -> tuple[BatchProgram, BatchProgram]:
    """The same program over an arena on the host and over its copy on the device."""
    tables = random_tables([(20, 24, 28), (32, 16, 24), (24, 24, 24)], dtype="float16")
    settings = {
        "foreground_prob": 0.5,
        "flip_prob": (0.5, 0.5, 0.5),
        "affine_prob": 0.5,
        **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
    }
    host = program_of(tables, (16, 16, 16), batch_size=4, seed=3, **settings)
    device = program_of(tables.to(torch.device("cuda")), (16, 16, 16), batch_size=4, seed=3, **settings)
    return host, device


@contextmanager
def no_sync() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def busy(milliseconds: int = 20) -> None:
    """Keep the current stream busy without keeping the host."""
    torch.cuda._sleep(milliseconds * 1_500_000)


def test_a_device_program_never_waits_and_gives_the_hosts_batches() -> None:
    host, device = programs()
    device(0)
    for step in range(5):
        with no_sync():
            image, label = device(step)
        wanted_image, wanted_label = host(step)
        assert image.is_cuda
        torch.testing.assert_close(image.cpu(), wanted_image, rtol=1e-4, atol=1e-4)
        # A coordinate within rounding of a voxel's border may take either neighbour.
        assert (label.cpu() != wanted_label).float().mean() < 1e-3


def test_a_device_arena_is_read_in_line() -> None:
    _, device = programs()
    device(0)
    threads = threading.active_count()
    batches = []
    with no_sync():
        for batch in Feed(device, device=torch.device("cuda"), first=2, last=5):
            assert threading.active_count() == threads
            batches.append(batch)
    for step, batch in zip(range(2, 5), batches, strict=True):
        for found, wanted in zip(batch, device(step), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_ring_carries_every_batch_over_unchanged(depth: int) -> None:
    host, _ = programs()
    copies: list[Batch] = []
    for image, label in Ring(host.batches(3, 12), torch.device("cuda"), depth=depth):
        assert image.is_cuda
        assert label.is_cuda
        # A step that is still at work on the device, long after the host has asked for the next batch.
        busy()
        copies.append((image.clone(), label.clone()))
    for step, batch in zip(range(3, 12), copies, strict=True):
        for found, wanted in zip(batch, host(step), strict=True):
            assert torch.equal(found.cpu(), wanted)


def test_the_consumer_never_waits_on_the_host() -> None:
    host, _ = programs()
    with no_sync():
        for image, label in Ring(host.batches(0, 6), torch.device("cuda")):
            image.add_(label)


def test_a_consumer_on_a_stream_of_its_own() -> None:
    host, _ = programs()
    copies: list[Tensor] = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for image, _ in Ring(host.batches(0, 8), torch.device("cuda")):
            busy()
            copies.append(image.clone())
    torch.cuda.synchronize()
    for step, found in enumerate(copies):
        assert torch.equal(found.cpu(), host(step)[0])


def test_slots_lie_in_pinned_memory_and_are_allocated_once() -> None:
    host, _ = programs()
    ring = Ring(host.batches(0, 9), torch.device("cuda"), depth=2)
    places = []
    for image, label in ring:
        places.append((image.data_ptr(), label.data_ptr()))
    assert places == (places[:2] * 5)[:9]
    assert len(set(places)) == 2
    assert all(tensor.is_pinned() for batch in ring._host for tensor in batch)
    assert all(tensor.is_cuda for batch in ring._slots for tensor in batch)


def test_leaving_early_while_the_device_is_at_work() -> None:
    host, _ = programs()
    kept: Tensor | None = None
    for step, (image, _) in enumerate(Ring(host.batches(0, 1_000_000), torch.device("cuda"))):
        busy(100)
        kept = image.clone()
        if step == 2:
            break
    del image
    # The slots' memory may be given away now, but not before the queued clone has read it.
    junk = [torch.full((4, 1, 16, 16, 16), float("nan"), device="cuda") for _ in range(16)]
    assert kept is not None
    assert torch.equal(kept.cpu(), host(2)[0])
    assert len(junk) == 16
    assert not any(thread.name == "hasten-feed" for thread in threading.enumerate())
