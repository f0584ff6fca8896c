"""The experiments on a session put together here: what they find, and that they leave everything as it was."""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hasten.doctor.script.launch import INJECT


@pytest.fixture(scope="module")
def probe():
    """Import by the name that the modules have in a watched process."""
    sys.path.insert(0, str(INJECT))
    try:
        names = ("experiments", "exp_data", "exp_net", "exp_time")
        yield SimpleNamespace(**{name: importlib.import_module(f"hasten_probe.{name}") for name in names})
    finally:
        sys.path.remove(str(INJECT))


class Items(Dataset):
    """Eight items that take a while, and are the same each time unless they draw."""

    def __init__(self, draw=None, wait=0.0):
        self.draw, self.wait = draw, wait

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(self.wait)
        return {"x": torch.full((1, 8, 8), index + (self.draw() if self.draw else 0.0)), "y": index % 2}


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, bias=False),
        nn.InstanceNorm2d(4),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(256, 2),
    )


def session_of(dataset=None, net=None, batch=None, optimizer=None, budget_s=2.5, **loader):
    net = network() if net is None else net
    return SimpleNamespace(
        cores=2,
        loaders=[(DataLoader(Items() if dataset is None else dataset, **{"batch_size": 2, **loader}), "/s/t.py:1")],
        optimizers=[(torch.optim.Adam(net.parameters()) if optimizer is None else optimizer, "/s/t.py:2")],
        roots=[(net, "/s/t.py:3")],
        last_batches={id(net): ((torch.rand(2, 1, 8, 8),), {}) if batch is None else batch},
        steps=[{"round": 1.0, "seconds": 0.02, "parts": {"wait": 0.005, "forward": 0.01, "optimizer": 0.005}}] * 7,
        finished=False,
        load={},
        conv_sites={id(module): f"/s/t.py:{number}" for number, module in enumerate(net.modules())},
        shapes={},
        autocast={"": 5},
        budget_s=budget_s,
        assume_cuda=False,
    )


def state(session):
    """All that must not change."""
    net, optimizer = session.roots[0][0], session.optimizers[0][0]
    return {
        "net": {name: value.clone() for name, value in net.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "optimizer": json.dumps(optimizer.state_dict()["param_groups"], default=str) + str(len(optimizer.state)),
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state()),  # noqa: NPY002
        "modes": (torch.is_anomaly_enabled(), torch.is_grad_enabled(), torch.backends.cudnn.benchmark, net.training),
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def test_all_together_leave_everything_as_it_was(probe):
    session = session_of(shuffle=True)
    net = session.roots[0][0]
    net(torch.rand(2, 1, 8, 8)).sum().backward()
    before = state(session)
    with torch.autograd.set_detect_anomaly(True):
        before["modes"] = (True, *before["modes"][1:])
        result = probe.experiments.run(session)
        assert same(before, state(session))
    assert multiprocessing.active_children() == []
    for name in probe.experiments.SHARES:
        assert "error" not in result[name], result[name]
    json.dumps(result)


def test_a_failing_experiment_is_an_error_in_words(probe):
    class Breaks(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            raise KeyError("no such file")

    class Odd(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("cannot be copied")

    net = Odd(4, 4)
    session = session_of(Breaks(), net, ((torch.rand(2, 4),), {}), budget_s=30.0)
    result = probe.experiments.run(session)
    assert "no such file" in result["workers"]["error"]
    assert "no such file" in result["items"]["error"]
    assert result["autocast"]["error"] == "RuntimeError: cannot be copied"


def test_no_time_skips_all(probe):
    result = probe.experiments.run(session_of(budget_s=0.0))
    assert result["workers"]["skipped"] == result["autocast"]["skipped"] == "no time left"
    assert result["workers"]["needs_s"] == 2.0


def test_a_finished_session_is_open_meanwhile(probe, monkeypatch):
    session, seen = session_of(budget_s=2.0), []
    session.finished = True
    monkeypatch.setattr(probe.experiments, "_calls", lambda one: ({}, seen.append(one.finished) or ""))
    probe.experiments.run(session)
    assert seen == [False]
    assert session.finished


def test_workers_of_a_dataset_that_waits(probe):
    session = session_of(Items(wait=0.02), shuffle=True)
    result = probe.exp_data.workers(session, 16.0, lambda: time.sleep(0.01))
    assert (result["now"], result["site"]) == (0, "/s/t.py:1")
    assert result["seconds"]["0"] >= 0.04
    assert set(result["loop"]) == {"0", "1", "2"}
    assert min(result["loop"]["0"]) > max(result["loop"]["2"])
    assert multiprocessing.active_children() == []


def test_the_first_item_in_this_process_is_no_measure(probe):
    class Imports(Items):
        def __getitem__(self, index):
            item, self.wait = super().__getitem__(index), 0.0
            return item

    assert set(probe.exp_data.workers(session_of(Imports(wait=0.6)), 2.0)["seconds"]) == {"0"}


def test_items_that_the_dataset_keeps_and_batches_that_it_makes_itself(probe):
    class Keeps(Items):
        __getitem__ = functools.cache(Items.__getitem__)

    result = probe.exp_data.items(session_of(Keeps(wait=0.05)), 60.0)
    assert (result["kind"], result["item_s"] > 0.05 > 10 * result["cached_s"]) == ("whole", True)
    lists = session_of(TensorDataset(torch.arange(8)), sampler=[[0, 1], [2, 3], [0, 1]], batch_size=None)
    assert probe.exp_data.items(lists, 2.0)["kind"] == "whole"


def test_items_that_take_too_long_are_made_once_each(probe, monkeypatch):
    session = session_of(Items(wait=0.3))
    late = probe.exp_data.workers(session, 1.0)
    assert late["skipped"].startswith("a batch takes")
    assert late["needs_s"] > 1.0
    assert probe.exp_data.items(session, 0.1)["kind"] == "whole", "one of some seconds is made twice all the same"
    monkeypatch.setattr(probe.exp_data, "_TWICE", 0.0)
    assert "too long to be made twice" in probe.exp_data.items(session, 0.2)["skipped"]


def test_slow_steps_leave_the_time_to_the_data(probe, monkeypatch):
    monkeypatch.setattr(probe.exp_data, "step_beside", lambda *_: 0.1)  # on a busy machine it finds no time
    session = session_of(Items(wait=0.01), budget_s=6.0)
    session.steps = [step | {"parts": {"forward": 1.0, "wait": 0.1}} for step in session.steps]
    result = probe.experiments.run(session)
    for name in ("autocast", "doubled_batch", "channels_last"):
        assert (result[name]["skipped"], result[name]["needs_s"]) == ("a step computes for 1.0 s", 12.0)
    assert set(result["workers"]["loop"]) == {"0", "1", "2"}


def test_one_thread_beside_other_programs_is_timed_by_its_own_clock(probe):
    session = session_of()
    session.load = {"others": 1.0}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert next(iter(probe.exp_net.nets(session))).clock is time.thread_time
        torch.set_num_threads(2)
        assert next(iter(probe.exp_net.nets(session))).clock is None
    finally:
        torch.set_num_threads(threads)
    assert next(iter(probe.exp_net.nets(session_of()))).clock is None


def test_workers_that_can_not_be_tried(probe):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(4)

    class Own(DataLoader):
        def __iter__(self):
            return iter(())

    assert "iterable" in probe.exp_data.workers(session_of(Stream()), 1.0)["skipped"]
    session = session_of()
    session.loaders = [(Own(Items()), "")]
    assert probe.exp_data.workers(session, 1.0)["skipped"] == "Own fetches in its own way"
    assert probe.exp_data.workers(SimpleNamespace(loaders=[]), 1.0) == {"skipped": "no DataLoader"}


def test_a_worker_that_hangs_is_ended(probe):
    loader = DataLoader(Items(wait=30.0), batch_size=1)
    assert probe.exp_data.seconds_a_batch(loader, [[0], [1]], 1, 1.0) is None
    assert multiprocessing.active_children() == []


def test_the_samplers_generator_is_put_back(probe):
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, shuffle=True, generator=generator)
    before = generator.get_state()
    assert sorted(probe.exp_data.asked(loader)[2]) == list(range(8))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        (None, "whole"),
        (random.random, "before-draw"),
        (np.random.rand, "random"),
        (lambda: float(torch.rand(())), "before-draw"),
        (np.random.default_rng(0).random, "random"),  # A generator of its own shows in the values.
        (lambda: np.random.uniform(0, 1), "before-draw"),  # noqa: NPY002
        (lambda: 0 * random.random(), "before-draw"),  # Drawn, though without an effect: a flip that rarely happens.
    ],
)
def test_items_that_draw_and_items_that_do_not(probe, draw, kind):
    result = probe.exp_data.items(session_of(Items(draw)), 60.0)
    assert result["kind"] == kind
    assert result.get("cached_s", 0.0) <= result["item_s"]
    if kind == "whole":
        assert (result["items"], result["batch_size"]) == (8, 2)
        assert result["bytes"] >= 256


class Slow(Items):
    """Most of an item is made before anything is drawn, from a generator of its transform's own or Python's."""

    def __init__(self, rng):
        super().__init__()
        self.transform = SimpleNamespace(steps=[SimpleNamespace(rng=rng)])

    def __getitem__(self, index):
        time.sleep(0.03)
        start = int(4 * (self.transform.steps[0].rng or random).random())
        time.sleep(0.005)
        return torch.full((4,), float(index + start))


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0), np.random.RandomState(0)])
def test_what_an_item_does_before_it_draws_is_the_same_each_time(probe, rng):
    result = probe.exp_data.items(session_of(Slow(rng)), 60.0)
    assert result["kind"] == "before-draw"
    assert result["cached_s"] >= 0.02


def test_items_are_looked_at_where_workers_hide_them_too(probe):
    session = session_of(budget_s=6.0)
    session.steps = [{"round": 1.0, "seconds": 0.1, "parts": {"forward": 0.1}}] * 7
    result = probe.experiments.run(session)
    assert result["items"]["kind"] == "whole"


def test_monai_prefix(probe):
    from monai.data import CacheDataset
    from monai.data import Dataset as MonaiDataset
    from monai.transforms import Compose, EnsureChannelFirst, Lambda, RandFlip

    still = [EnsureChannelFirst(channel_dim="no_channel"), Lambda(lambda x: x * 2)]
    data = [np.ones((4, 4), np.float32)] * 6
    result = probe.exp_data.items(session_of(MonaiDataset(data, Compose([*still, RandFlip(0.5)]))), 2.0)
    assert result["kind"] == "prefix"
    assert result["transforms"] == ["EnsureChannelFirst", "Lambda"]
    assert result["all_transforms"] == 3
    assert probe.exp_data.items(session_of(MonaiDataset(data, Compose([RandFlip(0.5)]))), 2.0)["kind"] == "random"
    cached = CacheDataset(data, Compose([*still, RandFlip(0.5)]), progress=False, num_workers=None)
    assert "keeps its results" in probe.exp_data.items(session_of(cached), 2.0)["skipped"]


def test_idle_biases_are_those_a_norm_takes_away(probe):
    session = session_of()
    (net,) = probe.exp_net.nets(session)
    result = probe.exp_net.conv_bias(net, session, 2.0)
    # The third convolution's norm takes away the mean of two channels together, so its bias counts.
    assert result["modules"] == ["0"]
    assert result["sites"] == ["/s/t.py:1"]
    assert result["difference"] < 1e-4
    session.roots[0][0][1].eval()
    assert "no convolution" in probe.exp_net.conv_bias(net, session, 2.0)["skipped"]


def test_what_a_network_is_spared(probe):
    session = session_of(net=nn.Linear(4, 2), batch=((torch.rand(3, 4),), {}))
    (net,) = probe.exp_net.nets(session)
    assert "no 2-D or 3-D" in probe.exp_net.channels_last(net, session, 1.0)["skipped"]
    casts = SimpleNamespace(autocast={"torch.bfloat16": 3})
    assert "uses autocast" in probe.exp_net.autocast(net, casts, 1.0)["skipped"]
    low = session_of(net=nn.Linear(4, 2).bfloat16(), batch=((torch.rand(3, 4),), {}))
    (net,) = probe.exp_net.nets(low)
    assert "low precision already" in probe.exp_net.autocast(net, low, 1.0)["skipped"]
    frozen = session_of(net=nn.Linear(4, 2).requires_grad_(False), optimizer=object())
    assert probe.exp_net.nets(frozen) == []


def test_a_compiled_network_is_left_alone(probe):
    net = nn.Linear(4, 2)
    net.compile()
    session = session_of(net=net, batch=((torch.rand(3, 4),), {}), budget_s=0.5)
    assert "compiled" in probe.experiments.run(session)["autocast"]["skipped"]


def test_nested_arguments_are_doubled_and_laid_out(probe, monkeypatch):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.seen = []

        def forward(self, pair, scale, mask=None):
            self.seen.append((pair["a"].shape[0], mask.shape[0], pair["a"].is_contiguous()))
            return {"out": (self.conv(pair["a"]) * scale,)}

    net = Both()
    session = session_of(net=net, batch=(({"a": torch.rand(2, 3, 6, 6)}, 2.0), {"mask": torch.rand(2, 5)}))
    (held,) = probe.exp_net.nets(session)
    with monkeypatch.context() as patch:
        patch.setattr(probe.exp_net, "versus", lambda *_: {"gain": 0.75, "low": 0.5, "high": 1.0})
        result = probe.exp_net.doubled_batch(held, session, 2.0)
    assert (result["size"], result["low"], result["gain"], result["high"]) == (2, 1.0, 1.5, 2.0)
    laid = probe.exp_net.channels_last(held, session, 2.0)
    assert laid["layout"] == "channels_last"
    assert laid["difference"] < 1e-4
    assert net.seen == []


@pytest.mark.parametrize(
    ("base_s", "arm_s", "budget_s", "expected"),
    [
        (0.03, 0.001, 2.0, {"gain": 30.0, "low": 30.0, "rounds": 15}),
        (0.2, 0.2, 0.5, {"needs_s": 2.4}),
        (0.03, 0.06, 5.0, {"gain": 0.5, "low": 0.0, "rounds": 3}),
    ],
)
def test_times_in_turns(probe, monkeypatch, base_s, arm_s, budget_s, expected):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(probe.exp_time, "time", clock)

    def lasting(seconds):
        def call():
            clock.now += seconds

        return call

    result = probe.exp_time.versus(lasting(base_s), lasting(arm_s), budget_s)
    assert {name: result[name] for name in expected} == pytest.approx(expected)


def test_the_interval_is_that_of_compare(probe):
    from hasten.observe.compare import judge

    draw = random.Random(1)
    for rounds in (5, 6, 9, 15):
        base, other = ([draw.uniform(1, 2) for _ in range(rounds)] for _ in range(2))
        assert probe.exp_time.interval(base, other) == judge(base, other, 0.03)[:3]
