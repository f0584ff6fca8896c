"""What follows from measurements that are made up."""

from __future__ import annotations

import dataclasses

import pytest

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.doctor.run.findings import RunMeasurements, _nice, findings
from hasten.doctor.run.measure import PeriodicCosts, TimedSteps, split_of
from hasten.doctor.time_split import Split

PERIODIC = PeriodicCosts(
    validation_s=1.0, timed_cases=8, validations=10, checkpoint_s=0.01, write_s=0.1, checkpoints=10, steps=1000
)
SETTLED = ("sample.batch_size=4", "train.precision=bf16", "train.channels_last=false", "train.validate_every=100",
           "train.checkpoint_every=100", "train.steps=1000", "train.compile=false")  # fmt: skip


def config(*overrides: str) -> RunConfig:
    return load_run(None, overrides)


def split(**parts: float) -> Split:
    whole = {"forward": 0.03, "backward": 0.05, "optimizer": 0.01, "sample": 0.002} | parts
    return Split(steps=20, step_s=sum(whole.values()), parts=whole)


def doubled(ratio: float, **parts: float) -> Split:
    return dataclasses.replace(split(**parts), fixed_batch_s=0.09, doubled=ratio)


def facts(*overrides: str, **changed) -> RunMeasurements:
    plain = RunMeasurements(
        config=config(*SETTLED, *overrides), split=split(), cuda=False, inline=True, home="ram", periodic=PERIODIC,
    )  # fmt: skip
    return dataclasses.replace(plain, **changed)


def only(given: RunMeasurements):
    (finding,) = findings(given)
    return finding


def test_a_healthy_run_has_no_finding():
    assert findings(facts(split=doubled(1.9))) == []


def test_validation_gets_a_tenth():
    periodic = dataclasses.replace(PERIODIC, validations=100)
    result = only(facts("train.validate_every=10", periodic=periodic, split=split(validation=0.1)))
    # 1 s every N steps of 92 ms is a tenth of the time for N = 98.
    assert (result.name, result.cure) == ("validation-often", "train.validate_every=100")
    assert result.gain == pytest.approx(0.192 / 0.102, rel=0.01)
    assert "52%" in result.evidence


def test_a_single_validation_that_is_too_long_is_made_cheaper():
    periodic = dataclasses.replace(PERIODIC, validations=1, validation_s=500.0)
    result = only(facts("train.validate_every=1000", periodic=periodic, split=split(validation=0.5)))
    assert result.where == "infer.overlap"


def test_checkpoints():
    periodic = dataclasses.replace(PERIODIC, checkpoints=1000, checkpoint_s=0.05)
    result = only(facts("train.checkpoint_every=1", periodic=periodic, split=split(checkpoint=0.05)))
    assert result.name == "checkpoint-often"
    assert result.cure == "train.checkpoint_every=30"


@pytest.mark.parametrize(("ratio", "named"), [(1.0, True), (1.2, True), (1.7, False), (0.54, False)])
def test_the_batch(ratio, named):
    """Twice the samples in half the time are another kernel's, and no fixed cost."""
    result = findings(facts(split=doubled(ratio)))
    assert [(one.name, one.cure) for one in result] == [("small-batch", "sample.batch_size=32")] * named
    assert all(1 < (one.gain or 0) <= 20 for one in result)


def test_a_small_batch_is_not_told_as_launches_too():
    assert [result.name for result in findings(facts(split=doubled(1.1, overhead=0.1)))] == ["small-batch"]
    assert only(facts(split=split(overhead=0.1))).cure == "train.compile=true"
    assert only(facts("train.capture=false", cuda=True, split=split(overhead=0.1))).cure == "train.capture=true"


def test_waiting_for_data():
    waits = split(wait=0.1)
    assert only(facts(split=waits)).name == "slow-feed"
    assert only(facts(split=waits, home="file")).cure == "cache.home=ram"
    assert only(facts(split=waits, cuda=True, inline=False)).cure == "cache.home=device"
    assert findings(facts(split=split(wait=0.005))) == []


def test_the_operation_that_costs_most():
    costs = {"batch": 0.1, "PhysicalAffine": 0.06, "GaussianNoise": 0.01}
    probabilities = {"PhysicalAffine": 0.6, "GaussianNoise": 0.1}
    result = only(facts(split=split(sample=0.1), operations=costs, probabilities=probabilities))
    assert (result.where, result.cure) == ("augment", "augment.override='{PhysicalAffine.prob: 0.2}'")
    assert result.cost_s == pytest.approx(0.04)
    assert "GaussianNoise: 10.0 ms" in result.evidence


def test_a_cold_cache():
    cold = facts(prepared_s=40.0, split=split(prepare=0.04), cores=4)
    assert only(cold).where == "cache.dir"
    few = dataclasses.replace(cold, config=config(*SETTLED, "prepare.num_threads=1"))
    assert only(few).cure == "prepare.num_threads=4"


def test_a_busy_machine_is_a_note_at_the_end():
    result = findings(facts(others=1.5, split=split(wait=0.1)))
    assert [one.level for one in result] == ["finding", "note"]


def test_round_numbers():
    assert [_nice(value) for value in (0.2, 1, 1.2, 7, 13, 54, 98, 101, 2600)] == [1, 1, 2, 8, 15, 60, 100, 150, 3000]


# The split


def ran(step_s: float = 0.1, **marks) -> TimedSteps:
    plain = {"forward": 0.03, "backward": 0.05, "optimizer": 0.01, "around": 0.0, "batch": 0.005}
    return TimedSteps(steps=20, step_s=step_s, marks=plain | marks)


def test_a_split_adds_up_and_rare_things_are_spread():
    result = split_of(ran(), inline=True, periodic=PERIODIC, prepared_s=20.0)
    assert result.parts["sample"] == 0.005
    assert result.parts["overhead"] == pytest.approx(0.005)
    assert result.parts["validation"] == pytest.approx(0.01)
    assert result.parts["checkpoint"] == pytest.approx(0.0001)
    assert result.parts["prepare"] == pytest.approx(0.02)
    assert sum(result.parts.values()) == pytest.approx(result.step_s) == pytest.approx(0.1301)


def test_a_thread_that_makes_batches_is_waited_for():
    result = split_of(ran(batch=0.02, step_s=0.12), inline=False, copy_s=0.004)
    assert result.parts["wait"] == pytest.approx(0.016)
    assert result.parts["host_to_device"] == pytest.approx(0.004)
    assert result.parts["sample"] == 0


def test_a_gpu_that_waits_for_launches_or_for_the_host():
    launches = split_of(ran(), inline=True, cuda=True, busy_s=0.05)
    assert launches.parts["overhead"] == pytest.approx(0.045)
    graph = split_of(ran(), inline=True, cuda=True, captured_s=0.05)
    assert graph.step_s == pytest.approx(0.05)
    assert graph.parts["forward"] == pytest.approx(0.015)
