"""Records to findings: each rule on made-up records, at both sides of its threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.doctor.script.doctor import findings_of
from hasten.doctor.script.records import as_record
from hasten.doctor.script.time_split import split_of
from hasten.doctor.time_split import diagnose

STEPS = 20
SITE = "/s/train.py:10"
PAGEABLE = {"count": 38, "pinned": 0, "seconds": 0.1}
FIRST = {"step": 0, "start_s": 0.2, "batches": 4}
RESTARTED = {"passes": [FIRST | {"step": step} for step in (0, 5, 9)]}
VALIDATION = {"step": 9, "site": SITE, "seconds": 0.7}


def loader(**known):
    seen = {"site": SITE, "own_thread": False, "batches": 15, "wait_s": 0.015, "passes": [FIRST], "training": STEPS}
    seen |= {"items_s": 0.1, "collate_s": 0.02, "fetches": 19, "made": 1, "num_workers": 2, "pin_memory": True}
    return seen | {"prefetch_factor": 2, "persistent_workers": True} | known


def record(parts=None, cuda=False, **raw):
    """Steps of 100 ms, of which `parts` is taken from the forward pass."""
    more = parts or {}
    spent = {"forward": 0.1 - sum(more.values()), **more}
    step = {"seconds": 0.1, "parts": spent, "cpu": 0.1, "synced": False}
    plain = {
        "steps": [{"seconds": 9.0, "parts": {"overhead": 9.0}, "cpu": 1.0}, *[step] * (STEPS - 1)],
        "devices": {"cuda" if cuda else "cpu": STEPS},
        "loaders": [loader()],
        "roots": [{"type": "torch.nn.Sequential", "site": "/s/train.py:5"}],
        "cudnn_benchmark": True,
        "convolutions": True,
        "shapes": {"8x1x64x64": STEPS - 1},
    }
    return as_record(plain | raw)


def names(*records):
    return [(each.name, each.level, each.where) for each in findings_of(records)]


def calls(kind, count=19, seconds=0.1):
    return {"calls": [{"kind": kind, "site": SITE, "count": count, "seconds": seconds}]}


def reads(steps=19, device="cpu", kind=".item()", site=SITE, seconds=0.1):
    return {"site": site, "kind": kind, "device": device, "count": steps, "seconds": seconds, "steps": steps}


def test_a_healthy_record_has_no_finding():
    assert names(record()) == []
    assert names(record(cuda=True)) == []
    assert names(replace(record(), assume_cuda=True)) == []


@pytest.mark.parametrize(
    ("raw", "threads"),
    [
        ({"threads": 2, "cores": 2, "load": {"others": 1.0}}, 1),
        ({"threads": 8, "cores": 8, "load": {"others": 3.2}}, 5),
        ({"threads": 8, "cores": 2, "load": {"others": 0.0}}, 2),
        ({"threads": 2, "cores": 2, "load": {"others": 0.2}}, None),
        ({"threads": 4, "cores": 8, "load": {"others": 3.0}}, None),
        ({"threads": 1, "cores": 2, "load": {"others": 2.0}}, None),
        ({"threads": 2, "cores": 2, "load": {"others": 1.0}, "spin": {"OMP_WAIT_POLICY": "PASSIVE"}}, None),
        ({"threads": 2, "cores": 2, "load": {"others": 1.0}, "world": 2}, None),
        ({"threads": 2, "cores": 2, "load": {"others": 1.0}, "cuda": True}, None),
    ],
)
def test_threads_without_a_core_each_spin(raw, threads):
    found = [each for each in findings_of([record(**raw)]) if each.name == "spinning-threads"]
    assert [f"OMP_NUM_THREADS={threads}," in each.cure for each in found] == [True] * (threads is not None)


def test_too_few_steps_say_nothing():
    few = record(**calls("gc_collect"))
    assert names(as_record(few.raw | {"steps": few.raw["steps"][:4]})) == []
    assert findings_of([]) == []


@pytest.mark.parametrize(
    ("raw", "result"),
    [
        ({"parts": {"wait": 0.02}, "loaders": [loader(num_workers=0)]}, "no-workers"),
        ({"loaders": [loader(persistent_workers=False, **RESTARTED)]}, "no-persistent-workers"),
        ({"cuda": True, "loaders": [loader(pin_memory=False)], "copies": PAGEABLE}, "unpinned-memory"),
        ({"cuda": True, "reads": [reads(device="cuda")]}, "host-read"),
        ({"cuda": True, **calls("empty_cache")}, "empty-cache"),
        (calls("gc_collect"), "gc-collect"),
        (calls("zero_grad"), "zero-grad-memset"),
        ({"modes": {"anomaly": {"steps": 19}}, "mode_sites": {"anomaly": SITE}}, "anomaly-detection"),
        ({"modes": {"profiler": {"steps": 19}}, "mode_sites": {"profiler": SITE}}, "profiler-on"),
        ({"modes": {"nvtx": {"steps": 19}}, "mode_sites": {"nvtx": SITE}}, "nvtx-on"),
        (calls("gradcheck", count=2), "gradcheck"),
        ({"cuda": True, "cuda_devices": 2, "mode_sites": {"data_parallel": SITE}}, "data-parallel"),
        ({"cuda": True, "cudnn_benchmark": False, "roots": [{"type": "Net", "site": SITE}]}, "cudnn-benchmark-off"),
        ({"cuda": True, "shapes": dict.fromkeys("abcdef", 3), "roots": [{"site": SITE}]}, "cudnn-benchmark-on"),
        ({"parts": {"validation": 0.021}, "validations": [VALIDATION]}, "validation-share"),
        ({"saves": [{"step": n, "site": SITE, "seconds": 0.02} for n in range(3, STEPS)]}, "checkpoint-stall"),
    ],
)  # fmt: skip
def test_found_at_its_place(raw, result):
    output = findings_of([record(**raw)])
    assert [(each.name, each.level, each.where) for each in output] == [(result, "finding", SITE)]
    assert output[0].cure


@pytest.mark.parametrize(
    "raw",
    [
        {"parts": {"wait": 0.009}, "loaders": [loader(num_workers=0)]},
        {"parts": {"wait": 0.02}, "loaders": [loader(num_workers=0, own_thread=True)]},
        {"parts": {"wait": 0.02}, "loaders": [loader(num_workers=0, training=1)]},
        {"parts": {"wait": 0.02}},
        {"loaders": [loader(persistent_workers=False, length=2000)]},
        {"loaders": [loader(persistent_workers=False, passes=[FIRST, FIRST | {"start_s": 0.01}])]},
        {"loaders": [loader(pin_memory=False)]},
        {"cuda": True, "loaders": [loader(pin_memory=False)], "copies": {"count": 0, "pinned": 0, "seconds": 0.0}},
        {"cuda": True, "reads": [reads(steps=4, device="cuda")]},
        {"cuda": True, "reads": [reads(device="cpu")]},
        {"cuda": True, **calls("empty_cache", count=1, seconds=0.01)},
        calls("gc_collect", count=1, seconds=0.01),
        {"modes": {"profiler": {"steps": 6}}, "mode_sites": {"profiler": SITE}},
        {"cuda": True, "cudnn_benchmark": False, "convolutions": False},
        {"cuda": True, "cudnn_benchmark": False, "shapes": {f"1x{side}": 3 for side in range(64, 71)}},
        {"cudnn_benchmark": False},
        {"cuda": True, "shapes": {f"1x{side}": 5 for side in range(60, 64)}},
        {"parts": {"validation": 0.019}, "validations": [{"step": 9, "site": SITE, "seconds": 0.3}]},
        {"saves": [{"step": 9, "site": SITE, "seconds": 0.1}]},
        {"saves": [{"step": 0, "site": SITE, "seconds": 9.0}]},
    ],
)
def test_not_found_below_its_threshold(raw):
    assert names(record(**raw)) == []


def test_without_a_gpu_what_only_a_gpu_minds_is_a_note_and_a_finding_for_one():
    raw = {"reads": [reads(seconds=0.01)], "mode_sites": {"data_parallel": SITE}, **calls("empty_cache")}
    here = record(**raw)
    assert {level for _, level, _ in names(here)} == {"note"}
    there = as_record(here.raw | {"assume_cuda": True})
    assert sorted(names(there)) == [(name, "finding", SITE) for name in ("data-parallel", "empty-cache", "host-read")]


@pytest.mark.parametrize(("restarts", "cuda"), [([], False), ([0.05], False), ([0.01], True)])
def test_a_start_of_workers_that_costs_little_or_was_not_seen_again_is_a_note(restarts, cuda):
    one = loader(persistent_workers=False, passes=[FIRST, *(FIRST | {"start_s": each} for each in restarts)])
    assert names(record(loaders=[one], assume_cuda=cuda)) == [("no-persistent-workers", "note", SITE)]


def test_reading_much_on_a_cpu_is_a_finding_with_its_cost():
    (message,) = findings_of([record(reads=[reads(kind=".tolist()", seconds=0.38)])])
    assert (message.name, message.level, message.where) == ("host-read", "finding", SITE)
    assert message.cost_s == pytest.approx(0.02)
    assert message.gain == pytest.approx(1.25)
    assert "GPU" not in message.title


def test_reads_of_one_line_are_one_finding():
    two = [reads(device="cuda"), reads(device="cuda", kind=".cpu()")]
    (message,) = findings_of([record(cuda=True, reads=two)])
    assert ".item() and .cpu()" in message.title
    assert "2.0 a step" in message.evidence


@pytest.mark.parametrize(
    ("tried", "level"),
    [({"loop": {"0": [0.1, 0.1], "1": [0.1, 0.1]}}, "note"), ({"seconds": {"0": 0.02}}, "finding")],
)
def test_a_wait_that_other_counts_of_workers_do_not_shorten_here_is_a_note(tried, level):
    raw = {"parts": {"wait": 0.012}, "loaders": [loader(num_workers=0)]}
    assert names(record(**raw, experiments={"step_s": 0.1, "workers": tried})) == [("no-workers", level, SITE)]


def test_a_long_validation_hides_no_other_fault():
    raw = {"parts": {"validation": 0.08, "wait": 0.004}, "validations": [VALIDATION]}
    output = names(record(**raw, loaders=[loader(num_workers=0)]))
    assert [each[:2] for each in output] == [("validation-share", "finding"), ("no-workers", "note")]
    assert names(record({"wait": 0.004}, loaders=[loader(num_workers=0)])) == []


def ranks(*work):
    return [as_record(record().raw | {"rank": n, "world": len(work), "steps": steps(w)}) for n, w in enumerate(work)]


def steps(cpu):
    return [{"seconds": 0.1, "parts": {"forward": 0.1}, "cpu": cpu} for _ in range(STEPS)]


def test_ranks_with_unequal_work():
    (message,) = findings_of(ranks(0.04, 0.1))
    assert (message.name, message.where) == ("unequal-ranks", SITE)
    assert "rank 1" in message.title
    assert message.cost_s == pytest.approx(0.03)
    assert findings_of(ranks(0.08, 0.1)) == []


def test_a_compiled_function_hides_its_forward_pass():
    hidden = record({"forward": 0.0, "sample": 0.07, "backward": 0.03})
    assert split_of(hidden).parts == pytest.approx({"forward": 0.07, "backward": 0.03})
    bare = record({"forward": 0.0, "overhead": 0.07, "backward": 0.03}, loaders=[])
    assert split_of(bare).parts == pytest.approx({"forward": 0.07, "backward": 0.03})


def test_without_a_dataloader_what_lies_between_steps_is_making_data():
    assert diagnose(split_of(record({"overhead": 0.05}, loaders=[]))).bound == "input"
    assert diagnose(split_of(record({"overhead": 0.05}))).bound == "launch"


def test_ranks_that_wait_in_backward():
    step = {"seconds": 0.1, "parts": {"forward": 0.02, "backward": 0.08}, "cpu": 0.05}
    step |= {"backward": 0.03, "backward_wall": 0.08}
    output = split_of(as_record(record().raw | {"world": 2, "steps": [step] * STEPS}))
    assert output.parts["gradient_sync"] == pytest.approx(0.05)
    assert diagnose(output).bound == "sync"


def test_on_a_gpu_the_parts_come_from_steps_that_were_waited_for():
    free = {"seconds": 0.1, "parts": {"forward": 0.01, "device_reads": 0.09}, "cpu": 0.1, "synced": False}
    watched = {"seconds": 0.12, "parts": {"forward": 0.04, "backward": 0.08}, "cpu": 0.1, "synced": True}
    output = split_of(as_record(record(cuda=True).raw | {"steps": [free, free, free, watched] * 5}))
    assert output.step_s == pytest.approx(0.1)
    assert output.parts == pytest.approx({"forward": 0.1 / 3, "backward": 0.2 / 3})
