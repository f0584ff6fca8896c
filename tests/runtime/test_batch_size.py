from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hasten.runtime import batch_size as module
from hasten.runtime.batch_size import (
    find_batch_size,
    find_batch_size_for,
)
from hasten.runtime.out_of_memory import out_of_memory

CPU = torch.device("cpu")
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


class Machine:
    """Runs batches of up to a size."""

    def __init__(self, largest: int, error: Exception = ERRORS[0]) -> None:
        self.largest, self.error = largest, error
        self.tried: list[int] = []

    def __call__(self, count: int) -> None:
        self.tried.append(count)
        if count > self.largest:
            raise self.error


@pytest.fixture(autouse=True)
def _quick_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection takes a tenth of a second here, and only one test needs it."""
    monkeypatch.setattr(module, "release_memory", lambda: None)


@settings(deadline=None)
@given(largest=st.integers(1, 300), lowest=st.integers(1, 9), highest=st.integers(10, 400), unit=st.integers(1, 7))
def test_the_answer_is_the_largest_multiple_that_fits(largest: int, lowest: int, highest: int, unit: int) -> None:
    machine = Machine(largest)
    first = -(-lowest // unit) * unit
    if first > highest:
        return
    if first > largest:
        with pytest.raises(ValueError, match=f"a batch of {first} does not fit"):
            find_batch_size(machine, lowest=lowest, highest=highest, multiple_of=unit)
        return
    result = find_batch_size(machine, lowest=lowest, highest=highest, multiple_of=unit)
    assert result.batch_size == min(largest, highest) // unit * unit
    assert result.tried == tuple((count, count <= largest) for count in machine.tried)
    assert len(set(machine.tried)) == len(machine.tried) <= 18
    assert all(count <= highest and count % unit == 0 for count in machine.tried)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__} {str(error)[:20]}")
def test_every_way_to_say_that_memory_is_short_is_understood(error: Exception) -> None:
    assert out_of_memory(error)
    assert find_batch_size(Machine(5, error)).batch_size == 5


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

    assert find_batch_size(step).batch_size == 3
    assert len(held) == 4


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps run on the host in place of a GPU. Returns the bytes that are held back, as they are asked for."""
    asked: list[int] = []

    def hold_back(device: torch.device, budget: int | None, safety: float, reserve: int) -> torch.Tensor:
        asked.append(reserve)
        return torch.empty(0)

    monkeypatch.setattr(module, "_reserve_memory", hold_back)
    return asked


def net(channels: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, channels, 3, padding=1), nn.BatchNorm3d(channels), nn.PReLU(), nn.Conv3d(channels, 2, 1)
    )


def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, label[:, 0])


def test_the_rate_grows_with_the_batch_and_the_network_stays_as_it_was(card: list[int]) -> None:
    network, random = net(), torch.get_rng_state()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    result = find_batch_size_for(
        network, loss, (1, 8, 8, 8), num_classes=2, device=CPU, highest=6, learning_rate=0.01, reference_batch=2
    )
    assert result.batch_size == 6
    assert result.learning_rate == pytest.approx(0.03)
    assert "learning rate 0.01 at a batch of 2 is 0.03" in result.why
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(value.grad is None for value in network.parameters())
    assert torch.equal(torch.get_rng_state(), random)
