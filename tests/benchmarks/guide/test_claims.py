"""Every claim measures what it says: it runs, and its ways give the same result."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks.guide.claim import Budget
from benchmarks.guide.claims import CLAIMS
from benchmarks.guide.ranks import ranks
from benchmarks.guide.run import run_guide

GPU_ONLY = ("a CUDA device", "two CUDA devices")
NOTHING_TO_COMPARE = {"debugging", "batch-size"}
DIFFER = {"amp": 0.05, "color-jitter-batch": 0.06, "compile-unet": 1e-2}
"""How far the ways of a claim may differ; the others by 1e-3."""


OF_RANKS = ("ddp-over-dp", "ddp-on-cpu", "no-sync")
"""Whose processes `test_training_processes_take_orders_and_one_that_fails_says_why` has too."""
EVERY = [pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name in OF_RANKS else ()) for one in CLAIMS]


@pytest.mark.parametrize("guidance", EVERY)
def test_every_claim_runs_and_its_ways_agree(guidance):
    if guidance.needs == "the package lmdb" and not importlib.util.find_spec("lmdb"):
        pytest.skip("without lmdb")
    outcome = guidance.run(Budget(quick=True, device="cpu"))
    result = outcome.comparison
    assert result is not None
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in result.seconds.values())
    assert len(result.seconds) >= 2
    assert "x (" in outcome.measured or "of the memory" in outcome.measured
    if guidance.name in NOTHING_TO_COMPARE:
        assert outcome.difference is None
    else:
        assert outcome.difference is not None
        assert outcome.difference <= DIFFER.get(guidance.name, 1e-3)
    # One round says nothing about speed; memory is counted.
    assert outcome.verdict == ("holds" if guidance.name == "checkpointing" else "can't tell")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_claims_about_a_gpu_are_not_measured_without_one():
    claims = [one for one in CLAIMS if one.needs in GPU_ONLY]
    assert len(claims) >= 5
    for result in run_guide(claims, seconds=60.0):
        assert result.outcome.verdict == "not measured"
        assert "CUDA device" in result.outcome.why


@pytest.mark.slow
def test_training_processes_take_orders_and_one_that_fails_says_why():
    with ranks(device="cpu", quick=True) as order:
        assert order(1, 1, True) == order(2, 1, True)
        with pytest.raises(RuntimeError, match=r"(?s)process ended: .*TypeError"):
            order("many", 1, True)
