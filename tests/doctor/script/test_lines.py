"""Samples of the loop's lines, and what the step does with its tensors, turned into findings."""

from __future__ import annotations

import pytest

from hasten.doctor.script.findings import algorithms, calls, lines
from hasten.doctor.script.records import as_record

SITE = "/s/train.py:10"
STEPS = 21


def record(cuda=False, device="cpu", **raw):
    """Steps of 100 ms."""
    step = {"seconds": 0.1, "parts": {"forward": 0.1}, "cpu": 0.1}
    return as_record({"steps": [step] * STEPS, "devices": {device: STEPS}, "assume_cuda": cuda} | raw)


def line(seconds, package="scipy", where="step", site=SITE):
    return {"site": site, "package": package, "where": where, "seconds": seconds, "inner": site, "called": "zoom"}


def read(elements=1, validating=False, **more):
    plain = {"site": SITE, "loop": SITE, "kind": ".cpu()", "device": "cpu", "count": 20, "seconds": 0.0, "steps": 20}
    return plain | {"elements": elements, "validating": validating} | more


def call(kind, count=20, seconds=0.0):
    return {"kind": kind, "site": SITE, "count": count, "seconds": seconds}


LOADER = {"training": STEPS}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"lines": [line(0.09)]}, []),
        ({"lines": [line(0.11)]}, ["no-workers"]),
        ({"lines": [line(0.6)]}, ["no-workers", "heavy-items"]),
        (
            {"lines": [line(0.2, "zipfile")], "opened": [{"site": SITE, "files": 12, "opens": 40}]},
            ["no-workers", "uncached-items"],
        ),
        ({"lines": [line(0.2, "numpy")], "opened": [{"site": SITE, "files": 40, "opens": 40}]}, ["no-workers"]),
        ({"lines": [line(0.6, "multiprocessing")]}, ["heavy-items"]),
        ({"lines": [line(0.6, "torch")]}, []),
        ({"lines": [line(0.2, "matplotlib")]}, ["sync-plot"]),
        ({"lines": [line(0.2, "matplotlib", "validation")]}, ["sync-plot"]),
        ({"lines": [line(0.2, "")], "reads": [read(4096)]}, ["host-metric"]),
        ({"lines": [line(0.2, "")], "reads": [read(1)]}, []),
        ({"lines": [line(0.2, "scipy", "validation")]}, ["host-metric"]),
        ({"lines": [line(0.2, "sklearn") | {"read": True}], "loaders": [LOADER]}, ["host-metric"]),
        ({"lines": [line(0.2, "sklearn") | {"read": False}], "loaders": [LOADER]}, ["no-workers"]),
        ({"lines": [line(0.2, "torch")], "loops": [{"site": SITE, "count": 64}]}, ["python-loop"]),
        ({"lines": [line(0.05, "torch")], "loops": [{"site": SITE, "count": 64}]}, []),
        ({"lines": [line(0.2, "PIL")], "calls": [call("written", 80)]}, ["sync-plot"]),
        ({"lines": [line(0.2, "PIL")], "calls": [call("written", 2)]}, ["no-workers"]),
    ],
)  # fmt: skip
def test_a_line_is_named_for_what_it_does(raw, named):
    result = lines.find(record(**raw))
    assert [one.name for one in result] == named
    assert {one.where for one in result} <= {SITE}


def test_work_of_the_loop_beside_a_long_wait_is_a_note():
    step = {"seconds": 0.1, "parts": {"forward": 0.02, "wait": 0.08}, "cpu": 0.1}
    (result,) = lines.find(record(steps=[step] * STEPS, lines=[line(0.05)]))
    assert (result.name, result.level) == ("no-workers", "note")
    assert lines.find(record(lines=[line(0.05)])) == []


def test_maps_that_a_validation_copies_one_by_one_are_a_note_for_a_gpu():
    rounds = {"validations": [{"step": 9, "site": SITE, "seconds": 0.1}] * 2}
    (result,) = lines.find(record(True, reads=[read(4096, True, count=80, steps=2)], **rounds))
    assert (result.name, result.level, result.where) == ("host-metric", "note", SITE)
    for few in (read(1, True, count=80), read(4096, True, count=4), read(4096, count=80)):
        assert lines.find(record(True, reads=[few], **rounds)) == []
    assert lines.find(record(reads=[read(4096, True, count=80)], **rounds)) == []


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"calls": [call("unused_gradients")]}, ["needless-grad"]),
        ({"calls": [call("input_gradient", 5)]}, []),
        ({"calls": [call("float64")]}, ["late-cast"]),
    ],
)
def test_needless_work_is_a_note(raw, named):
    result = calls.find(record(**raw))
    assert [one.name for one in result] == named
    assert all(one.level == "note" for one in result)


def sent(**changed):
    plain = {"site": SITE, "count": 20, "batch": 0, "waits": 20, "again": 0, "compared": 5, "equal": 0}
    return {"sent": [plain | {"elements": 5000} | changed]}


PINNED = {"loaders": [{"site": SITE, "training": STEPS, "pin_memory": True, "num_workers": 2, "own_thread": False}]}


@pytest.mark.parametrize(
    ("raw", "on_cpu", "on_gpu"),
    [
        (sent(equal=5), ["recreate"], ["recreate"]),
        (sent(again=15), [], ["recreate"]),
        (sent(batch=20) | PINNED, [], ["sync-copy"]),
        (sent(batch=20, waits=0) | PINNED, [], []),
        (sent(), [], ["unpinned-memory"]),
        (sent(waits=0), [], []),
        (sent(elements=10), [], []),
    ],
)
def test_what_is_sent_to_the_device(raw, on_cpu, on_gpu):
    assert [one.name for one in calls.find(record(**raw))] == on_cpu
    assert [one.name for one in calls.find(record(True, **raw))] == on_gpu


def test_precision_and_determinism_for_a_gpu_that_is_not_here():
    raw = {"convolutions": True, "shapes": {"8x1": 20}, "autocast": {"": 20}, "cudnn_deterministic": True}
    assert list(algorithms.find(record(**raw))) == []
    assert [one.name for one in algorithms.find(record(True, **raw))] == ["deterministic", "no-autocast"]
    half = raw | {"autocast": {"torch.bfloat16": 20}, "cudnn_deterministic": False}
    assert [one.name for one in algorithms.find(record(True, **half))] == ["cudnn-benchmark-off"]


def test_reads_of_a_validation_are_not_those_of_every_step():
    assert calls.host_reads(record(reads=[read(validating=True)])) == []


@pytest.mark.parametrize(
    ("kind", "words"), [({"elements": 9000}, "device"), ({"boolean": True}, "torch.where"), ({}, "every 50 steps")]
)
def test_the_cure_fits_what_is_read(kind, words):
    (result,) = calls.host_reads(record(reads=[read() | kind]))
    assert words in result.cure


def test_a_network_that_is_run_for_nothing_costs_its_time_on_a_cpu():
    (result,) = calls.find(record(calls=[call("needless_forward", 20, 0.4)]))
    assert (result.name, result.level, result.cost_s) == ("needless-forward", "finding", pytest.approx(0.02))
    assert calls.find(record(calls=[call("needless_forward", 5, 0.4)])) == []
