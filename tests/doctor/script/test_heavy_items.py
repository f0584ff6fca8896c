"""Workers that take the cores from the training: seen by the network's own time alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.doctor.finding import Finding
from hasten.doctor.script.findings.loading import find, heavy_items
from hasten.doctor.script.records import as_record
from hasten.doctor.script.time_split import contended_s, split_of
from hasten.doctor.time_split import diagnose

SITE = "/s/train.py:10"


def record(*, wait=0.02, cpu=0.1, workers=1.0, others=0.0, device="cpu", work_s=0.18, cores=2):
    """Steps of 300 ms: `wait`, and the rest forward and backward, which have a core for `cpu` seconds."""
    both = 0.3 - wait
    step = {"seconds": 0.3, "parts": {"wait": wait, "forward": 0.4 * both, "backward": 0.6 * both}, "cpu": cpu}
    tried = {"items": {"kind": "random", "work_s": work_s / 2, "batch_size": 2, "site": SITE}}
    loader = {"training": 20, "num_workers": 1, "batches": 20, "wait_s": 20 * wait, "site": SITE, "own_thread": False}
    loader |= {"prefetch_factor": 2, "pin_memory": True, "persistent_workers": True, "passes": []}
    raw = {"steps": [step] * 20, "devices": {device: 20}, "loaders": [loader], "roots": [], "cores": cores}
    raw |= {"load": {"workers": workers, "others": others}, "threads": 2}
    return as_record(raw | {"experiments": tried})


@pytest.mark.parametrize(
    ("workers", "others", "cpu", "lost"),
    [(0.6, 0.0, 0.1, 0.18), (0.1, 0.0, 0.1, 0.0), (0.5, 0.5, 0.1, 0.135), (0.6, 0.0, 0.3, 0.0)],
)
def test_time_without_a_core_is_that_of_the_workers_which_have_it(workers, others, cpu, lost):
    one = record(workers=workers, others=others, cpu=cpu, cores=1)
    usual = one.raw["steps"][0]
    one.raw["steps"][-1] = usual | {"seconds": 0.9, "parts": usual["parts"] | {"validation": 0.6}}  # which waits, too
    assert contended_s(one) == pytest.approx(lost, rel=0.05)
    assert contended_s(record(workers=workers, others=others, cpu=cpu, device="cuda")) == 0.0


def test_the_split_gives_it_to_the_items_and_the_verdict_follows():
    split = split_of(record())
    assert split.parts["sample"] == pytest.approx(0.18)
    assert split.parts["forward"] + split.parts["backward"] == pytest.approx(0.1)
    assert sum(split.parts.values()) == pytest.approx(split.step_s)
    assert diagnose(split).bound == "input"
    assert diagnose(split_of(record(cpu=0.28))).bound == "compute"


def test_the_finding_names_loader_and_cost():
    (result,) = heavy_items(record(), [])
    assert (result.name, result.where, result.level) == ("heavy-items", SITE, "finding")
    assert result.cost_s == pytest.approx(0.2)
    assert result.gain == pytest.approx(3.0)
    assert heavy_items(record(wait=0.2, work_s=0.02, workers=0.1), []) == [], "they wait for a disk"


def test_other_workers_that_hide_it_or_items_that_can_be_kept_are_the_better_cure():
    (hidden,) = heavy_items(record(), [Finding(name="few-workers", title="", where=SITE, cure="", gain=2.0)])
    assert hidden.level == "note"
    same = record()
    same.experiments["items"]["kind"] = "whole"
    assert [one.level for one in heavy_items(same, [])] == ["note"]


def test_workers_hide_nothing_on_the_cores_that_the_network_uses():
    both = record(cpu=0.28, wait=0.01, workers=0.6)
    both.raw["roots"], both.experiments["autocast"] = [{"site": SITE}], {"base_s": 0.21}
    assert contended_s(both) == pytest.approx(0.08), "several threads spin, and compute longer than alone"
    (result,) = heavy_items(both, [])
    assert result.cost_s == pytest.approx(0.09)
    both.raw["shapes"] = {"2x1x64x64": 40}
    assert contended_s(both) == pytest.approx(0.01), "two passes in each step take twice as long alone"
    assert contended_s(as_record(both.raw | {"cores": 3})) == 0.0, "each thread and each worker has a core"


def test_workers_hide_nothing_that_all_cores_together_are_too_slow_for():
    slow = record(wait=0.28, work_s=0.45)
    few = Finding(name="few-workers", title="", where=SITE, cure="", gain=1.9)
    assert [one.level for one in heavy_items(slow, [few])] == ["finding"]


def without_experiments(items_s=1.9, work_s=0.1, **loader):
    """20 batches waited for in the process itself."""
    first = record(wait=0.1)
    steps = [step | {"wait_cpu": work_s} for step in first.raw["steps"]]
    known = {"num_workers": 0, "fetches": 20, "items_s": items_s, "collate_s": 0.1} | loader
    loaders = [first.raw["loaders"][0] | known]
    raw = first.raw | {"steps": steps, "loaders": loaders, "experiments": {"skipped": "no time left"}}
    return as_record(raw if loaders[0]["num_workers"] else raw | {"load": {}})


def test_items_that_were_timed_in_the_process_need_no_experiment():
    (result,) = heavy_items(without_experiments(), [])
    assert (result.name, result.level, result.cost_s) == ("heavy-items", "finding", pytest.approx(0.1))
    assert "95.0 ms for its items and 5.0 ms to collate" in result.evidence
    assert result.interval == pytest.approx((1.5, 1.5)), "each step waits as long"
    assert heavy_items(without_experiments(work_s=0.01), []) == [], "they wait, which workers hide"


def test_work_of_workers_is_known_from_their_processor_time():
    (result,) = heavy_items(without_experiments(num_workers=1, fetches=0), [])
    assert "the workers compute 300 ms a step" in result.evidence
    assert result.cost_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("workers", "cpu", "named"), [(4, 0.1, ["many-workers"]), (2, 0.1, []), (4, 0.27, []), (5, 0.27, ["many-workers"])]
)
def test_more_workers_than_cores_that_keep_the_training_from_its_own_are_a_note(workers, cpu, named):
    one = record(cpu=cpu)
    one.raw["loaders"][0]["num_workers"] = workers
    assert [(each.name, each.level) for each in find(one)] == [(name, "note") for name in named]
    one.experiments["workers"] = {"loop": {str(workers): [0.1, 0.1], "1": [0.3, 0.2]}}
    assert list(find(one)) == [], "fewer are slower"


def test_a_gpu_leaves_workers_less_time_than_the_network_here():
    one = record(cpu=0.28, wait=0.01)
    assert [*find(one), *heavy_items(one, [])] == []
    judged = replace(one, assume_cuda=True)
    notes = [*find(judged), *heavy_items(judged, [])]
    assert [each.name for each in notes] == ["few-workers", "heavy-items"]
    assert {(each.level, each.cost_s, each.gain) for each in notes} == {("note", None, None)}
    assert all(each.evidence.endswith("; if a GPU takes 14.5 ms for the rest of a step") for each in notes)
    judged.experiments["items"]["site"] = "/s/train.py:11"
    assert list(find(judged)) == [], "another loader's items"
