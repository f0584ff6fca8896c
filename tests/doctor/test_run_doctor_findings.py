"""What follows from measurements that are made up."""

from __future__ import annotations

import dataclasses

import pytest

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.doctor.run.assemble import ColdCache
from hasten.doctor.run.findings import RunMeasurements, _nice, findings
from hasten.doctor.run.probes import Arms, PeriodicCosts, TimedSteps, split_of
from hasten.doctor.time_split import Split, diagnose

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


def facts(*overrides: str, **changed) -> RunMeasurements:
    plain = RunMeasurements(
        config=config(*SETTLED, *overrides), split=split(), cuda=False, inline=True, home="ram", periodic=PERIODIC,
        cold=None, arms=Arms(),
    )  # fmt: skip
    return dataclasses.replace(plain, **changed)


def only(given: RunMeasurements):
    (finding,) = findings(given)
    return finding


def test_a_healthy_run_has_no_finding():
    arms = Arms(seconds={"fixed": 0.09, "doubled": 0.17, "whole": 0.09, "threads": 0.09, "eager": 0.09})
    assert findings(facts(arms=arms)) == []


def test_validation_gets_a_tenth():
    periodic = dataclasses.replace(PERIODIC, validations=100)
    result = only(facts("train.validate_every=10", periodic=periodic, split=split(validation=0.1)))
    # 1 s every N steps of 92 ms is a tenth of the time for N = 98.
    assert (result.name, result.where, result.cure) == (
        "validation-often",
        "train.validate_every",
        "train.validate_every=100",
    )
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
    setting, _, value = result.cure.partition("=")
    assert (setting, int(value)) == ("train.checkpoint_every", 30)


@pytest.mark.parametrize(("doubled", "size"), [(0.1, 8), (0.12, 8), (0.17, None)])
def test_the_batch(doubled, size):
    result = findings(facts(arms=Arms(seconds={"fixed": 0.1, "doubled": doubled})))
    if size is None:
        assert result == []
    else:
        assert result[0].name == "small-batch"
        assert result[0].cure == "sample.batch_size=32"
        assert 1 < (result[0].gain or 0) <= 20


def test_a_small_patch_that_is_quick_speaks_against_fixed_costs():
    arms = {"fixed": 0.1, "doubled": 0.12}
    assert only(facts(arms=Arms(seconds=arms | {"small": 0.09}))).name == "small-batch"
    assert findings(facts(arms=Arms(seconds=arms | {"small": 0.01}))) == []


def test_a_small_batch_is_not_told_as_launches_too():
    arms = Arms(seconds={"fixed": 0.1, "doubled": 0.11})
    assert [result.name for result in findings(facts(arms=arms, split=split(overhead=0.1)))] == ["small-batch"]
    assert only(facts(split=split(overhead=0.1))).cure == "train.compile=true"
    assert only(facts("train.capture=false", cuda=True, split=split(overhead=0.1))).cure == "train.capture=true"


def test_waiting_for_data():
    waits = split(wait=0.1)
    assert only(facts(split=waits)).name == "slow-feed"
    assert only(facts(split=waits, disk_s=0.08)).cure == "cache.home=ram"
    assert only(facts(split=waits, cuda=True, inline=False)).cure == "cache.home=device"
    assert findings(facts(split=split(wait=0.005))) == []


def test_the_operation_that_costs_most():
    costs = {"batch": 0.1, "PhysicalAffine": 0.06, "GaussianNoise": 0.01}
    probabilities = {"PhysicalAffine": 0.6, "GaussianNoise": 0.1}
    result = only(facts(split=split(sample=0.1), operations=costs, probabilities=probabilities))
    assert (result.where, result.cure) == ("augment", "augment.override='{PhysicalAffine.prob: 0.2}'")
    assert result.cost_s == pytest.approx(0.04)
    assert "GaussianNoise: 10.0 ms" in result.evidence


def test_switches_that_lose():
    seconds = {"fixed": 0.2, "whole": 0.1, "threads": 0.15, "eager": 0.12}
    result = findings(facts("train.accumulate=4", arms=Arms(seconds=seconds), threads=1, cores=8))
    assert {one.name: one.cure for one in result} == {
        "needless-accumulate": "train.accumulate=1",
        "few-threads": "export OMP_NUM_THREADS=8",
        "slow-compile": "train.compile=false",
    }


@pytest.mark.parametrize(
    ("disk", "decode", "prepare", "isal", "name"),
    [(1, 0.1, 0.1, True, "slow-disk"), (0.1, 1, 0.1, False, "slow-gunzip"), (0.1, 0.1, 1, True, "cold-cache")],
)
def test_a_cold_cache(disk, decode, prepare, isal, name):
    cold = ColdCache(cases=100, threads=4, disk_s=disk, decode_s=decode, prepare_s=prepare)
    parts = split(read=cold.read_total_s / 1000, prepare=cold.prepare_total_s / 1000)
    result = only(facts(cold=cold, split=parts, isal=isal, cores=4))
    assert result.name == name
    assert "100 cases on 4 threads" in result.evidence
    more = findings(facts(cold=cold, split=parts, isal=True, cores=8))[0]
    assert more.cure == ("prepare.num_threads=8" if name != "slow-disk" else result.cure)


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
    cold = ColdCache(cases=100, threads=2, disk_s=0.1, decode_s=0.1, prepare_s=0.2)
    result = split_of(ran(), inline=True, periodic=PERIODIC, cold=cold)
    assert result.parts["sample"] == 0.005
    assert result.parts["overhead"] == pytest.approx(0.005)
    assert result.parts["validation"] == pytest.approx(0.01)
    assert result.parts["checkpoint"] == pytest.approx(0.0001)
    assert result.parts["read"] == pytest.approx(0.01)
    assert result.parts["prepare"] == pytest.approx(0.01)
    assert sum(result.parts.values()) == pytest.approx(result.step_s) == pytest.approx(0.1301)


def test_a_thread_that_makes_batches_is_waited_for():
    result = split_of(ran(batch=0.02, step_s=0.12), inline=False, copy_s=0.004)
    assert result.parts["wait"] == pytest.approx(0.016)
    assert result.parts["host_to_device"] == pytest.approx(0.004)
    assert result.parts["sample"] == 0


def test_fixed_costs_need_two_witnesses():
    small = {"fixed": 0.09, "small": 0.04}
    one = split_of(ran(), inline=True, arms=Arms(seconds=small | {"doubled": 0.18}, small_share=0.01))
    assert one.parts["overhead"] == pytest.approx(0.005), "doubling took twice as long: nothing is fixed"
    both = split_of(ran(), inline=True, arms=Arms(seconds=small | {"doubled": 0.14}, small_share=0.01))
    assert both.parts["overhead"] == pytest.approx(0.035)
    assert both.parts["forward"] == pytest.approx(0.03 * 5 / 8)
    tiny = split_of(ran(), inline=True, arms=Arms(seconds={"fixed": 0.09, "doubled": 0.09}))
    assert diagnose(tiny).bound == "launch"


def test_a_gpu_that_waits_for_launches_or_for_the_host():
    launches = split_of(ran(), inline=True, cuda=True, busy_s=0.05)
    assert launches.parts["overhead"] == pytest.approx(0.045)
    graph = split_of(ran(), inline=True, cuda=True, captured_s=0.05)
    assert graph.step_s == pytest.approx(0.05)
    assert graph.parts["forward"] == pytest.approx(0.015)
