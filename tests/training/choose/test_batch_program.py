"""What a run draws its batches from, and when that is fused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.config.settled import with_settings
from hasten.observe.compare import Compared, Comparison
from hasten.training.choose import batch_program
from tests.augment.stores import random_store
from tests.training.choose.test_autotune import planned


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Programs:
    """Stands in for `make_segment`: a batch takes `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.fused: list[bool] = []
        self.fused_image = 0.0
        self.batches = 0
        self.chain: Any = None
        self.cases: Any = None
        self.store: Any = None

    def __call__(self, chain: Any, cases: Any, *, train_cases: Any, fuse: bool, **more: Any) -> Any:
        self.fused.append(fuse)
        self.chain, self.cases, self.store = chain, train_cases, cases.store

        def batch(step: int) -> dict[str, torch.Tensor]:
            self.batches += 1
            # The first batch of a process is slower than the others, and one is disturbed.
            self.clock.now += self.seconds * {1: 50.0, 3: 9.0}.get(self.batches, 1.0)
            return {"image": torch.full((4,), self.fused_image if fuse else 0.0)}

        return _Callable(batch)


class _Callable:
    device = torch.device("cpu")
    prepared_on_host = False
    stages = ()
    batch_size = 2
    why_not_captured: str | None = "no graph in this test"

    def __init__(self, call: Any) -> None:
        self.call = call

    def __call__(self, step: int) -> Any:
        return self.call(step)

    def drawn(self, sample: torch.Tensor) -> torch.Tensor:
        return sample

    def rendered(self, drawn: torch.Tensor) -> Any:
        return self.call(0)


def judged(gain: float) -> Comparison:
    """Five rounds in which the other program was so many times as fast."""
    arm = Compared(arm="fused", gain=gain, low=gain, high=gain, verdict="faster" if gain > 1 else "same", why="")
    return Comparison(base="eager", seconds={"eager": [gain] * 5, "fused": [1.0] * 5}, others=0.0, arms={"fused": arm})


STORE = random_store([(8, 8, 8)], num_channels=2)
ARENA: Any = SimpleNamespace(store=STORE, part=None, pages=None, index=lambda ids: ids)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    clock = Clock()
    made = Programs(clock, seconds=0.1)
    monkeypatch.setattr("hasten.runtime.device.time", clock)
    monkeypatch.setattr(batch_program, "make_segment", made)
    monkeypatch.setattr(batch_program, "compared", lambda *_, **__: judged(2.0))
    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, programs: Programs) -> Programs:
    """A device on which Triton works, and a chain that can be fused."""
    monkeypatch.setattr(batch_program, "triton_works", lambda device: True)
    monkeypatch.setattr(batch_program, "fused_places", lambda stages: [1])
    monkeypatch.setattr(batch_program, "_build_kernels", lambda segment: None)
    monkeypatch.setattr(batch_program, "compared", lambda *_, **__: judged(2.0))
    return programs


@pytest.mark.parametrize(
    ("steps", "gain", "image", "on", "why"),
    [
        (100_000, 2.0, 0.0, True, "measured faster: 2.00 times"),
        (100_000, 1.0, 0.0, False, "not certainly faster"),
        (100_000, 2.0, 0.1, False, "its batches are not those of the operations one by one"),
        (10, 2.0, 0.0, False, "not 3 times as much"),
    ],
)
def test_fused_kernels_must_be_faster_and_right(
    tmp_path: Path, card: Programs, monkeypatch: pytest.MonkeyPatch, steps: int, gain: float, image: float, on: bool,
    why: str,
) -> None:  # fmt: skip
    card.fused_image = image
    monkeypatch.setattr(batch_program, "compared", lambda *_, **__: judged(gain))
    _, engaged = batch_program.choose_program(planned(tmp_path, device="cuda", steps=steps), ARENA)
    assert engaged["fused batch kernels"].on is on
    assert why in engaged["fused batch kernels"].reason
    assert card.fused == ([False, True] if steps > 10 else [False])


class Graphs:
    """Stands in for `SideStream`: a batch within a graph takes `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.replays = clock, seconds, 0

    def __call__(self, device: torch.device) -> Graphs:
        return self

    def run(self, body: Any) -> Any:
        return body()

    def capture(self, body: Any) -> tuple[Graphs, Any]:
        return self, body()

    def replay(self) -> None:
        self.replays += 1
        self.clock.now += self.seconds


@pytest.mark.parametrize(("capture", "on"), [(None, False), (False, True)])
def test_a_batch_is_timed_as_the_run_makes_it(
    tmp_path: Path, card: Programs, monkeypatch: pytest.MonkeyPatch, capture: bool | None, on: bool
) -> None:
    # Eager, a batch takes 0.1 s, most of it launches; in the run's graph it takes nothing that fusing could save.
    graphs = Graphs(card.clock, 1e-6)
    monkeypatch.setattr(batch_program, "SideStream", graphs)
    monkeypatch.setattr(_Callable, "why_not_captured", None)
    run = planned(tmp_path, device="cuda", steps=1000)
    run = replace(run, config=with_settings(run.config, "train", capture=capture))
    _, engaged = batch_program.choose_program(run, ARENA)
    assert engaged["fused batch kernels"].on is on
    assert (graphs.replays > 0) is (capture is None)
