"""What a run draws its batches from, and when that is compiled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.augment.program import Program
from hasten.config.decision import Accelerator, Accelerators
from hasten.observe.compare import Compared, Comparison
from hasten.sample.share import WHOLE, Share
from hasten.training import sampling
from tests.augment.stores import random_store
from tests.training.choose.test_autotune import limited_to, planned


def settled_with_switches(planned: Any, share: Share = WHOLE, **limit: Any) -> tuple[Any, Program, Accelerators]:
    return sampling.choose_program(planned, ARENA, share, **limit)


def choose_program(planned: Any, **limit: Any) -> tuple[Any, Program, Accelerator]:
    result, program, engaged = settled_with_switches(planned, **limit)
    assert set(engaged) == {"compiled batch program"}
    return result, program, engaged["compiled batch program"]


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Programs:
    """Stands in for `make_segment`: an eager batch takes `seconds`, whatever is compiled works or fails."""

    def __init__(self, clock: Clock, seconds: float, works: bool = True) -> None:
        self.clock, self.seconds, self.works = clock, seconds, works
        self.made: list[bool] = []
        self.fused: list[bool] = []
        self.fused_image = 0.0
        self.batches = 0
        self.chain: Any = None
        self.cases: Any = None
        self.store: Any = None

    def __call__(self, chain: Any, cases: Any, *, train_cases: Any, compile: bool, fuse: bool, **more: Any) -> Any:
        self.made.append(compile)
        self.fused.append(fuse)
        self.chain, self.cases, self.store = chain, train_cases, cases.store

        def batch(step: int) -> dict[str, torch.Tensor]:
            self.batches += 1
            # The first batch of a process is slower than the others, and one is disturbed.
            self.clock.now += self.seconds * {1: 50.0, 3: 9.0}.get(self.batches, 1.0)
            return {"image": torch.full((4,), self.fused_image if fuse else 0.0)}

        why = ("compiled in 3.0 s" if self.works else "compiling failed: no compiler") if compile else ""
        made = SimpleNamespace(compiled=compile and self.works, why=why)
        return _Callable(batch, made)


class _Callable:
    device = torch.device("cpu")
    prepared_on_host = False
    stages = ()

    def __init__(self, call: Any, facts: SimpleNamespace) -> None:
        self.call, self.compiled, self.why = call, facts.compiled, facts.why

    def __call__(self, step: int) -> Any:
        return self.call(step)


def judged(gain: float) -> Comparison:
    """Five rounds in which the other program was so many times as fast."""
    arm = Compared(
        arm="other", base_s=gain, arm_s=1.0, low=gain, high=gain, verdict="faster" if gain > 1 else "same", why=""
    )
    return Comparison(base="eager", seconds={"eager": [gain] * 5, "other": [1.0] * 5}, others=0.0, arms={"other": arm})


STORE = random_store([(8, 8, 8)], num_channels=2)
ARENA: Any = SimpleNamespace(store=STORE, part=None, pages=None, index=lambda ids: ids)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    clock = Clock()
    made = Programs(clock, seconds=0.1)
    monkeypatch.setattr("hasten.runtime.device.time", clock)
    monkeypatch.setattr(sampling, "make_segment", made)
    monkeypatch.setattr(sampling, "other_cores", lambda seconds: 0.0)
    monkeypatch.setattr(sampling, "compared", lambda *_, **__: judged(2.0))
    return made


ELSEWHERE = "meta"
"""A device that is not the CPU, where the decision is one of time; nothing here computes anything."""


DECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    "half of a batch's time is saved": ({"steps": 3500}, {}, False, "compiling is not tried: it would take about 60 s"),
    "pays three times": ({"steps": 3700}, {}, True, ""),
    "a busy machine": ({"steps": 100_000}, {"others": 1.0}, False, "other programs use 1.0 cores"),
    "more than a tenth of the time": ({"steps": 100_000}, {"limit": 500.0}, False, "not tried"),
    "less than a tenth of the time": ({"steps": 100_000}, {"limit": 1000.0}, True, ""),
    "a short run": ({"device": ELSEWHERE, "steps": 100}, {}, False, "an eager batch takes 100 ms in 100 steps"),
    "no faster": ({"device": ELSEWHERE, "steps": 100_000}, {"gain": 1.0}, False, "not certainly faster: same: 1.00"),
    "fails": ({"device": ELSEWHERE, "steps": 100_000}, {"works": False}, False, "compiling failed: no compiler"),
    "300 steps fit": ({"device": ELSEWHERE, "steps": 100_000}, {"limit": 90.0, "step": 0.2}, False, "in 300 steps"),
    "no step fits": ({"device": ELSEWHERE, "steps": 100_000}, {"limit": -1.0, "step": 0.2}, False, ""),
    "4000 steps fit": ({"device": ELSEWHERE, "steps": 100_000}, {"limit": 1200.0, "step": 0.2}, True, ""),
    "a GPU": ({"device": "cuda", "steps": 100_000}, {}, False, ""),
}
"""Of each: the run, the machine, whether the batch program is compiled, and a part of the reason."""


@pytest.mark.parametrize(("run", "machine", "on", "why"), DECISIONS.values(), ids=DECISIONS)
def test_a_batch_program_is_compiled_where_it_pays(
    tmp_path: Path,
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    run: dict[str, Any],
    machine: dict[str, Any],
    on: bool,
    why: str,
) -> None:
    programs.works = machine.get("works", True)
    monkeypatch.setattr(sampling, "other_cores", lambda seconds: machine.get("others", 0.0))
    monkeypatch.setattr(sampling, "compared", lambda *_, **__: judged(machine.get("gain", 2.0)))
    limit = {"experiments": limited_to(machine["limit"])} if "limit" in machine else {}
    step = {"step_seconds": machine["step"]} if "step" in machine else {}
    result, program, engaged = choose_program(planned(tmp_path, **run), **limit, **step)
    assert program.compiled == engaged.on == result.config.sample.compile == on
    assert why in engaged.reason
    tried = on or not machine.get("works", True) or machine.get("gain") == 1.0
    assert programs.made == ([False, True] if tried else [False])


def test_several_processes_on_a_cpu_do_not_measure_for_themselves(tmp_path: Path, programs: Programs) -> None:
    run = planned(tmp_path, steps=100_000, batch_size=2)
    _, program, engaged = settled_with_switches(run, Share(0, 2))
    assert programs.made == [False]
    assert not program.compiled
    assert "several processes" in engaged["compiled batch program"].reason


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, programs: Programs) -> Programs:
    """A device on which Triton works, and a chain that can be fused."""
    monkeypatch.setattr(sampling, "triton_works", lambda device: True)
    monkeypatch.setattr(sampling, "fused_places", lambda stages: [1])
    monkeypatch.setattr(sampling, "_build_kernels", lambda segment: None)
    monkeypatch.setattr(sampling, "compared", lambda *_, **__: judged(2.0))
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
    monkeypatch.setattr(sampling, "compared", lambda *_, **__: judged(gain))
    _, program, engaged = settled_with_switches(planned(tmp_path, device="cuda", steps=steps))
    assert engaged["fused batch kernels"].on is on
    assert why in engaged["fused batch kernels"].reason
    assert card.fused == ([False, True] if steps > 10 else [False])
    assert not program.compiled
