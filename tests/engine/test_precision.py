from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hasten.engine.precision import autotuned

CUDA = torch.device("cuda")
"""A name; the block touches no card."""


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    yield
    torch.use_deterministic_algorithms(False)


def test_cudnn_looks_for_the_fastest_inside_only() -> None:
    seen = []

    def step() -> None:
        with autotuned(CUDA):
            seen.append(torch.backends.cudnn.benchmark)
            raise KeyError

    with pytest.raises(KeyError):
        step()
    assert seen == [True]
    assert not torch.backends.cudnn.benchmark


def test_what_the_user_has_on_stays_on() -> None:
    torch.backends.cudnn.benchmark = True
    with autotuned(CUDA):
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark


@pytest.mark.parametrize("how", ["algorithms", "cudnn"])
def test_not_where_the_same_bits_are_asked_for(how: str) -> None:
    if how == "algorithms":
        torch.use_deterministic_algorithms(True)
    else:
        torch.backends.cudnn.deterministic = True
    with autotuned(CUDA):
        assert not torch.backends.cudnn.benchmark


def test_a_cpu_is_left_alone() -> None:
    with autotuned(torch.device("cpu")):
        assert not torch.backends.cudnn.benchmark


def test_nothing_is_timed_unless_it_is_asked_for() -> None:
    with autotuned(CUDA, False):
        assert not torch.backends.cudnn.benchmark
