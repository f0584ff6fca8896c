"""Choosing claims, sharing the time among them, and leaving the process as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from benchmarks.guide.claim import Guidance, Outcome
from benchmarks.guide.run import run_guide


class Clock:
    """Time that only the claims spend."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


HELD = Outcome(verdict="holds", measured="2.00x (1.90 to 2.10), new")


def guidance(name, run=lambda budget: HELD, **known):
    return Guidance(name=name, claim=f"{name} is faster", source="a guide", run=run, **known)


def test_the_time_is_shared_by_what_each_needs_and_what_is_left_goes_on():
    clock, got = Clock(), {}

    def spend(name, seconds):
        def run(budget):
            got[name] = budget.seconds
            clock.now += seconds
            return HELD

        return run

    claims = [
        guidance("a", spend("a", 5.0)),
        guidance("b", spend("b", 40.0), setup_s=11.0),
        guidance("c", spend("c", 1.0)),
    ]
    results = run_guide(claims, seconds=100.0, clock=clock)
    assert got["a"] == pytest.approx(100 * 5 / 25)
    assert got["b"] == pytest.approx(95 * 15 / 20)
    assert got["c"] == pytest.approx(55)
    assert [result.seconds for result in results] == [5.0, 40.0, 1.0]


def test_a_claim_that_fails_does_not_cost_the_others():
    def broken(budget):
        raise RuntimeError("no such kernel")

    first, second = run_guide([guidance("broken", broken), guidance("sound")], seconds=30.0)
    assert first.outcome.verdict == "not measured"
    assert first.outcome.why == "failed: RuntimeError: no such kernel"
    assert second.outcome.verdict == "holds"


def test_the_process_is_left_as_it_was_also_after_an_error():
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    def messy(budget):
        torch.set_num_threads(threads + 1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.autograd.set_detect_anomaly(True)
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
        raise ValueError

    before = torch.backends.cudnn.benchmark, np.random.get_state()[2], random.getstate()  # noqa: NPY002
    run_guide([guidance("messy", messy)], seconds=30.0)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_anomaly_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert before == (torch.backends.cudnn.benchmark, np.random.get_state()[2], random.getstate())  # noqa: NPY002
