"""Experiments' numbers to findings: each rule on made-up measurements, and what must stay silent."""

from __future__ import annotations

import dataclasses

import pytest

from hasten.doctor.script.findings.experiments import find, step_of
from hasten.doctor.script.records import ProcessRecord, as_record


def arm(gain, base_s=0.1, spread=0.02, **more):
    """An experiment whose every round agreed within `spread`."""
    times = {"base_s": base_s, "arm_s": base_s / gain, "low": gain * (1 - spread), "high": gain * (1 + spread)}
    known = {"gain": gain, "rounds": 15, "site": "/s/train.py:30", "device": "cpu", "difference": 0.0}
    return times | known | more


def loader(now=0, **seconds):
    """By workers: w0=0.1 for 100 ms a batch without."""
    alone = {name[1:]: value for name, value in seconds.items()}
    return {"site": "/s/train.py:20", "now": now, "cores": 4, "batch_size": 4, "seconds": alone}


def tried(step_s=0.2, wait_s=0.0, rare_s=0.0, others=0.0, **experiments):
    """Steps that take and wait so long, and what was tried after them."""
    step = {"seconds": step_s, "parts": {"wait": wait_s, "validation": rare_s}}
    experiments = {"cores": 4, "others": others, "workers": {"skipped": "no DataLoader"}} | experiments
    return as_record({"steps": [step] * 25, "experiments": experiments})


def names(record):
    return [finding.name for finding in find(record)]


def only(record):
    (finding,) = find(record)
    return finding


def test_nothing_measured_is_nothing_found():
    assert find(ProcessRecord()) == []
    assert find(as_record(tried().raw | {"experiments": {"skipped": "several ranks"}})) == []
    assert find(as_record({"experiments": tried().experiments})) == []
    nothing = {name: {"skipped": "no time left"} for name in ("workers", "items", "autocast", "conv_bias")}
    assert find(tried(**nothing)) == []
    assert find(tried(**{name: {"error": "RuntimeError: x"} for name in nothing})) == []


def test_items_always_the_same():
    items = {"kind": "whole", "item_s": 0.02, "cached_s": 0.02, "bytes": 2**20, "items": 100, "free_bytes": 2**32}
    items |= {"site": "/s/train.py:20", "batch_size": 4, "workers": 0}
    result = only(tried(0.1, wait_s=0.08, workers=loader(0, w0=0.08), items=items))
    assert result.name == "uncached-items"
    assert result.gain == pytest.approx(5.0, rel=0.02)
    assert result.cost_s == pytest.approx(0.08, rel=0.05)
    assert "for i in range(len(dataset))" in result.cure
    assert "100 MiB" in result.evidence
    huge = only(tried(0.1, wait_s=0.08, workers=loader(0, w0=0.08), items=items | {"free_bytes": 2**20}))
    assert "into files" in huge.cure


def test_monai_transforms_before_the_first_random_one():
    items = {"kind": "prefix", "item_s": 0.02, "cached_s": 0.015, "bytes": 2**20, "items": 100, "free_bytes": 2**32}
    items |= {"site": "/s/train.py:20", "batch_size": 4, "transforms": ["LoadImage", "Spacing"], "all_transforms": 5}
    result = only(tried(0.1, wait_s=0.08, workers=loader(0, w0=0.08), items=items))
    assert result.name == "uncached-transforms"
    assert "2 of 5" in result.title
    assert "CacheDataset" in result.cure
    assert "LoadImage, Spacing" in result.evidence
    assert result.gain == pytest.approx(0.1 / 0.04, rel=0.02)
    full = only(tried(0.1, wait_s=0.08, workers=loader(0, w0=0.08), items=items | {"free_bytes": 0}))
    assert "PersistentDataset" in full.cure


@pytest.mark.parametrize(
    "items",
    [
        {"kind": "random", "item_s": 0.02},
        {"skipped": "CacheDataset keeps its results already"},
        {"kind": "whole", "item_s": 1e-5, "cached_s": 1e-5, "bytes": 64, "items": 9, "free_bytes": 1, "batch_size": 4},
    ],
)
def test_items_that_need_no_cache(items):
    assert names(tried(0.1, wait_s=0.08, workers=loader(0, w0=0.08), items=items)) == []


def test_items_whose_workers_hide_them():
    items = {"kind": "whole", "item_s": 0.02, "cached_s": 0.02, "bytes": 8, "items": 9, "free_bytes": 999}
    hidden = loader(2, w0=0.08, w2=0.04)
    known = tried(0.1, workers=hidden, items=items | {"batch_size": 4})
    known.raw["steps"] = [step | {"parts": {"forward": 0.1}} for step in known.raw["steps"]]
    assert names(known) == []
    waits = only(dataclasses.replace(known, assume_cuda=True))
    assert waits.evidence.endswith("; if a GPU takes 5.0 ms for the rest of a step")
    known.raw["threads"] = 4
    share = only(known)
    assert share.evidence.endswith("; workers take the network's cores for it")
    for note, cost_s in ((waits, None), (share, pytest.approx(0.02))):
        assert (note.name, note.level, note.cost_s, note.gain) == ("uncached-items", "note", cost_s, None)


def test_what_shortens_the_step_is_judged_without_validations():
    items = {"kind": "before-draw", "item_s": 0.02, "cached_s": 0.015, "batch_size": 2, "site": "/s/train.py:20"}
    result = only(tried(1.0, rare_s=0.9, wait_s=0.04, workers=loader(0, w0=0.04), items=items))
    assert (result.name, result.level) == ("uncached-items", "note")
    assert result.gain == pytest.approx(1 / 0.97, rel=0.01)
    result = only(tried(1.0, rare_s=0.5, wait_s=0.4, workers=loader(0, w0=0.4), items=items | {"batch_size": 20}))
    assert (result.level, result.gain) == ("finding", pytest.approx(1 / 0.7, rel=0.01))


@pytest.mark.parametrize(
    ("loops", "cure"),
    [
        ({"0": [0.4, 0.4], "4": [0.2, 0.2], "16": [0.3, 0.3]}, "num_workers=4"),
        ({"0": [0.4, 0.4], "4": [0.2, 0.2], "16": [0.2, 0.2]}, None),
        ({"0": [0.4, 0.4], "4": [0.2, 0.25], "16": [0.25, 0.25]}, None),
        ({"0": [0.4, 0.4], "4": [0.3, 0.3], "16": [0.2, 0.2]}, None),
    ],
    ids=["fewer are faster", "fewer are as fast", "fewer are as fast in a round", "fewer are slower"],
)
def test_more_workers_than_cores(loops, cure):
    workers = loader(16, w0=0.4, w4=0.2, w16=0.2) | {"loop": loops}
    result = find(tried(0.3, wait_s=0.2, workers=workers))
    assert [one.name for one in result] == (["many-workers"] if cure else [])
    assert all(cure in one.cure and one.level == "finding" for one in result)
    few = tried(0.3, wait_s=0.2, workers=loader(2, w2=0.4) | {"loop": {"0": [0.2, 0.2], "2": [0.4, 0.4]}})
    assert names(few) == ["many-workers"]
    assert names(dataclasses.replace(few, assume_cuda=True)) == [], "a network on a GPU leaves them the cores"


@pytest.mark.parametrize(
    ("now", "loops", "named"),
    [
        (0, {"0": [0.2, 0.2], "1": [0.1, 0.1], "2": [0.1, 0.1]}, ("no-workers", "num_workers=1", 2.0)),
        (1, {"0": [0.4, 0.4], "1": [0.2, 0.2], "4": [0.05, 0.05]}, ("few-workers", "num_workers=4", 4.0)),
        (0, {"0": [0.2, 0.2], "1": [0.1, 0.2]}, None),
        (0, {"0": [0.2, 0.2], "1": [0.1]}, None),
        (0, {"1": [0.1, 0.1], "2": [0.1, 0.1]}, None),
    ],
    ids=["the fewest that do", "too few", "faster in one round", "one round", "the present one not timed"],
)
def test_other_numbers_of_workers_whose_whole_steps_are_faster_in_every_round(now, loops, named):
    waits = {"wait_s": 0.1, "workers": loader(now, w0=0.1) | {"loop": loops}}
    result = find(tried(0.2, **waits))
    assert [one.name for one in result] == ([named[0]] if named else [])
    assert all(named[1] in one.cure and one.gain == pytest.approx(named[2]) for one in result)


def test_autocast_with_its_gain_on_the_whole_step():
    result = only(tried(0.2, autocast=arm(2.0, dtype="float16", device="cuda", difference=0.003)))
    assert result.name == "no-autocast"
    assert result.cost_s == pytest.approx(0.05)
    assert result.gain == pytest.approx(0.2 / 0.15)
    assert 'torch.autocast("cuda", dtype=torch.float16)' in result.cure
    assert "GradScaler" in result.cure
    assert "0.3%" in result.evidence


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("autocast", arm(1.08, dtype="bfloat16")),
        ("autocast", arm(1.5, spread=0.4, dtype="bfloat16")),
        ("autocast", arm(2.0, dtype="bfloat16", difference=0.4)),
        ("channels_last", arm(1.5, layout="channels_last", difference=0.1)),
        ("doubled_batch", arm(1.2, size=4, free_share=0.9)),
        ("doubled_batch", arm(1.9, size=4, free_share=0.1)),
    ],
)
def test_what_is_not_proven_not_equal_or_not_worth_it_is_silent(name, result):
    assert names(tried(0.2, **{name: result})) == []


def test_on_a_cpu_a_toy_network_is_not_told_to_change_its_precision():
    toy = arm(2.0, base_s=0.012, dtype="bfloat16")
    assert names(tried(0.02, autocast=toy)) == []
    assert names(tried(0.02, autocast=toy | {"device": "cuda"})) == ["no-autocast"]
    assert names(tried(0.02, channels_last=toy | {"layout": "channels_last"})) == []
    large = only(tried(0.2, channels_last=arm(2.0, layout="channels_last_3d", difference=1e-6)))
    assert (large.name, "torch.channels_last_3d" in large.cure) == ("no-channels-last", True)


def test_a_small_batch_gains_in_samples_and_not_where_the_loader_rules():
    double = arm(1.9, base_s=0.1, size=4, free_share=0.8) | {"arm_s": 0.105}
    result = only(tried(0.15, doubled_batch=double))
    assert result.name == "small-batch"
    assert "batch_size=8" in result.cure
    assert result.gain == pytest.approx(2 * 0.15 / (0.15 + 0.1 * (2 / 1.9 - 1)))
    assert result.interval[0] < result.gain < result.interval[1]
    slow = loader(0, w0=1.0)
    assert names(tried(1.1, wait_s=1.0, workers=slow, doubled_batch=double)) == []


def test_idle_biases_are_a_note():
    more = {"modules": ["0", "3"], "sites": ["/s/net.py:5", "/s/net.py:8"], "difference": 1e-7}
    note = only(tried(0.2, conv_bias=more))
    assert (note.name, note.level, note.where, note.gain) == ("conv-bias-before-norm", "note", "/s/net.py:5", None)
    assert "also at /s/net.py:8" in note.evidence
    assert names(tried(0.2, conv_bias=more | {"difference": 0.2})) == []


def test_one_thread_is_judged_by_its_processor_time_beside_other_programs():
    """Half of the wall time is its own: 40 ms of 80 ms of a step of 200 ms are saved, for sure."""
    own = arm(2.0, base_s=0.04, dtype="bfloat16") | {"own_clock": True, "slowed": 2.0}
    result = only(tried(0.2, others=1.0, autocast=own))
    assert (result.level, result.cost_s, result.gain) == ("finding", pytest.approx(0.04), pytest.approx(1.25))
    assert "40.0 ms of processor time now" in result.evidence


def test_a_busy_machine_makes_notes_of_all_but_the_gross():
    small = {"autocast": arm(1.5, dtype="bfloat16")}
    assert only(tried(0.2, **small)).level == "finding"
    busy = only(tried(0.2, others=1.0, **small))
    assert busy.level == "note"
    assert "other programs used 1.0 cores" in busy.evidence
    loops = {"loop": {"0": [0.2, 0.2], "1": [0.1, 0.1]}}
    assert only(tried(0.2, workers=loader(0, w0=0.1) | loops, others=1.0)).level == "finding"


def test_the_step_as_far_as_it_is_known():
    step = step_of(tried(0.2, wait_s=0.05, workers=loader(0, w0=0.01)))
    assert dataclasses.astuple(step) == (*map(pytest.approx, (0.2, 0.05, 0.15, 0, 0.0, False)), None)
    assert step_of(tried(0.2, wait_s=0.12, workers=loader(2, w2=0.2))).compute_s == pytest.approx(0.08)
    # Batches that others slowed down: the steps tell how fast they truly came.
    assert step_of(tried(0.2, wait_s=0.12, workers=loader(2, w2=0.05))).batch_s == pytest.approx(0.2)
    assert step_of(tried(0.2, wait_s=0.001, workers=loader(2, w2=0.05))).batch_s == 0.05
    assert step_of(tried(0.2, workers=loader(2, w2=0.05))).compute_s == pytest.approx(0.2)
    assert step_of(tried(0.2, wait_s=0.05)).compute_s == pytest.approx(0.15)
    assert step_of(tried(0.5, rare_s=0.3, wait_s=0.05)).step_s == pytest.approx(0.2)
    more = {"workers": loader(0, w0=0.05), "wait_s": 0.05}, {"workers": loader(2, w2=0.2), "wait_s": 0.15}
    for known in ({}, {"wait_s": 0.05}, *more):
        assert step_of(tried(0.2, **known)).after() == pytest.approx(0.2)
