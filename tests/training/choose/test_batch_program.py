"""What a run draws its batches from, and when that is fused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.training.choose import batch_program
from tests.augment.stores import random_store
from tests.training.choose.test_autotune import planned


class Programs:
    """Stands in for `make_segment`."""

    def __init__(self) -> None:
        self.fused: list[bool] = []
        self.fused_image = 0.0
        self.chain: Any = None
        self.cases: Any = None
        self.store: Any = None

    def __call__(self, chain: Any, cases: Any, *, train_cases: Any, fuse: bool, **more: Any) -> Any:
        self.fused.append(fuse)
        self.chain, self.cases, self.store = chain, train_cases, cases.store
        return _Callable(lambda step: {"image": torch.full((4,), self.fused_image if fuse else 0.0)})


class _Callable:
    device = torch.device("cpu")
    prepared_on_host = False
    stages = ()

    def __init__(self, call: Any) -> None:
        self.call = call

    def __call__(self, step: int) -> Any:
        return self.call(step)


STORE = random_store([(8, 8, 8)], num_channels=2)
ARENA: Any = SimpleNamespace(store=STORE, part=None, pages=None, index=lambda ids: ids)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A device on which Triton works, and a chain that can be fused."""
    made = Programs()
    monkeypatch.setattr(batch_program, "make_segment", made)
    monkeypatch.setattr(batch_program, "triton_works", lambda device: True)
    monkeypatch.setattr(batch_program, "fused_places", lambda stages: [1])
    monkeypatch.setattr(batch_program, "_build_kernels", lambda segment: None)
    return made


@pytest.mark.parametrize(
    ("steps", "image", "on", "why"),
    [
        (100_000, 0.0, True, "a few kernels"),
        (100_000, 0.1, False, "its batches are not those of the operations one by one"),
        (10, 0.0, False, "pays in 500 steps or more"),
    ],
)
def test_fused_kernels_must_be_right_and_the_run_long(
    tmp_path: Path, card: Programs, steps: int, image: float, on: bool, why: str
) -> None:
    card.fused_image = image
    _, engaged = batch_program.choose_program(planned(tmp_path, device="cuda", steps=steps), ARENA)
    assert engaged["fused batch kernels"].on is on
    assert why in engaged["fused batch kernels"].reason
    assert card.fused == ([False, True] if steps > 10 else [False])
