"""What a run draws its batches from, and when that is fused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from hasten.training.choose import batch_program
from tests.augment.stores import random_store
from tests.training.choose.test_autotune import planned

STORE = random_store([(8, 8, 8)], num_channels=2)
ARENA: Any = SimpleNamespace(store=STORE, part=None, pages=None, index=lambda ids: ids)


@pytest.mark.parametrize(
    ("steps", "image", "on", "why"),
    [
        (100_000, 0.0, True, "a few kernels"),
        (100_000, 0.1, False, "its batches are not those of the operations one by one"),
        (10, 0.0, False, "pays in 500 steps or more"),
    ],
)
def test_fused_kernels_must_be_right_and_the_run_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, image: float, on: bool, why: str
) -> None:
    """On a device on which Triton works, of a chain that can be fused. image: the value of fused batches."""
    fused: list[bool] = []

    def make(*given: Any, fuse: bool, **more: Any) -> Any:
        fused.append(fuse)
        return Mock(return_value={"image": torch.full((4,), image * fuse)}, prepared_on_host=False)

    monkeypatch.setattr(batch_program, "make_segment", make)
    monkeypatch.setattr(batch_program, "triton_works", lambda device: True)
    monkeypatch.setattr(batch_program, "fused_places", lambda stages: [1])
    monkeypatch.setattr(batch_program, "_build_kernels", lambda segment: None)
    _, engaged = batch_program.choose_program(planned(tmp_path, device="cuda", steps=steps), ARENA)
    assert engaged["fused batch kernels"].on is on
    assert why in engaged["fused batch kernels"].reason
    assert fused == ([False, True] if steps > 10 else [False])
