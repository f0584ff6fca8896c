from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hasten.runtime import batch_size as module
from hasten.runtime.batch_size import find_batch_size, find_batch_size_for
from hasten.runtime.out_of_memory import out_of_memory

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.fixture(autouse=True)
def _quick_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection takes a tenth of a second here, and only one test needs it."""
    monkeypatch.setattr(module, "release_memory", lambda: None)


@settings(deadline=None)
@given(largest=st.integers(0, 300), highest=st.integers(1, 400), error=st.sampled_from(ERRORS))
def test_the_answer_is_the_largest_that_fits_whatever_says_that_memory_is_short(
    largest: int, highest: int, error: Exception
) -> None:
    tried = []

    def step(count: int) -> None:
        tried.append(count)
        if count > largest:
            raise error

    assert out_of_memory(error)
    if not largest:
        with pytest.raises(ValueError, match="a batch of 1 does not fit"):
            find_batch_size(step, highest=highest)
        return
    assert find_batch_size(step, highest=highest) == min(largest, highest)
    assert len(set(tried)) == len(tried) <= 18


def test_what_a_failed_try_held_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "release_memory", gc.collect)
    held: list[weakref.ref[torch.Tensor]] = []

    def step(count: int) -> None:
        assert all(reference() is None for reference in held)
        tensor, cycle = torch.empty(count), [0]
        cycle.append(cycle)  # type: ignore[arg-type]
        held.append(weakref.ref(tensor))
        if count > 3:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {tensor.shape}")

    assert find_batch_size(step) == 3
    assert len(held) == 4


def test_the_network_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    # Steps run on the host in place of a GPU.
    monkeypatch.setattr(module, "_reserve_memory", lambda device, reserve: torch.empty(0))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.PReLU(), nn.Conv3d(4, 2, 1))
    before, random = {name: value.clone() for name, value in network.state_dict().items()}, torch.get_rng_state()
    result = find_batch_size_for(
        network,
        lambda output, label: nn.functional.cross_entropy(output, label[:, 0]),
        (1, 8, 8, 8),
        num_classes=2,
        device=torch.device("cpu"),
        highest=6,
    )
    assert result == 6
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(value.grad is None for value in network.parameters())
    assert torch.equal(torch.get_rng_state(), random)
