"""Cures put into torch from outside, and tried on made-up runs: outcome and agreement of the losses."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hasten.doctor.finding import Finding
from hasten.doctor.script.launch import INJECT, ScriptRun, run_script
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.script.report import tried_lines
from hasten.doctor.script.try_cures import judge_times, loss_difference, try_cures

SCRIPTS = Path(__file__).parents[1] / "scripts"


class Meter:
    def __init__(self, others=0.0):
        self.value = others

    def others(self):
        return self.value


def finding(switch):
    return Finding(name="n", title="t", where="t.py:1", cure="c", switch=switch)


def made(step_s=0.1, losses=(1.0, 0.9, 0.8), ended="bounded", exit_code=0, output="", steps=20):
    record = ProcessRecord(step_seconds=(step_s,) * steps, losses=tuple(losses))
    return ScriptRun(
        command=("t.py",), exit_code=exit_code, ended=ended, records=[record] if steps else [], output=output
    )


class Fake:
    """Stands in for `run_script`: what a run with the given switch gives, and a list of those asked for."""

    def __init__(self, **by_switch):
        self.by_switch = {name.replace("_is_", "="): value for name, value in by_switch.items()}
        self.asked = []

    def __call__(self, command, *, steps, seconds, switches, experiments, quiet):
        assert (steps, seconds, experiments, quiet) == (30, 60.0, False, True)
        self.asked.append(tuple(switches))
        value = self.by_switch.get(switches[0] if switches else "none", made())
        return next(value) if hasattr(value, "__next__") else value


def tried(fake, *switches, **more):
    said = []
    options = {"steps": 30, "seconds": 60.0, "echo": said.append, "run": fake, "meter": Meter(), **more}
    return try_cures(["t.py"], [finding(switch) for switch in switches], made(), **options), said


def test_runs_come_in_turns_and_a_clear_gain_wins():
    fake = Fake(autocast=made(0.05, (1.001, 0.899, 0.8)))
    (one,), said = tried(fake, "autocast", "", "autocast")
    assert fake.asked == [(), ("autocast",), ("autocast",), (), (), ("autocast",)]
    assert one.outcome == "faster"
    assert one.gain == pytest.approx(2.0)
    assert (one.difference, one.own_difference) == (pytest.approx(0.0011, rel=0.1), 0.0)
    assert len(one.base_s) == len(one.cured_s) == 3
    assert said == ["trying autocast: 3 runs with it and 3 without, interleaved"]


CRASH = made(ended="crashed", exit_code=1, output="Traceback\nRuntimeError: unsafe to autocast\n")


@pytest.mark.parametrize(
    ("runs", "others", "outcome", "reason"),
    [
        ({"autocast": made()}, 0.0, "same", ""),
        ({"autocast": made(0.2)}, 0.0, "slower", ""),
        ({"autocast": made(0.01)}, 0.9, "unclear", "other programs used 0.9 cores"),
        ({"autocast": itertools.cycle([made(0.05), made(0.09), made(0.12)])}, 0.0, "unclear", "overlap"),
        ({"autocast": CRASH}, 0.0, "failed", "with it the script ended with exit code 1: RuntimeError: unsafe"),
        ({"none": made(steps=0)}, 0.0, "unclear", "without it too few steps"),
        ({"none": made(steps=2)}, 0.0, "unclear", "without it too few steps"),
        ({"autocast": made(ended="never trained")}, 0.0, "unclear", "with it too few steps"),
        ({"autocast": made(ended="timeout", exit_code=143, steps=0)}, 0.0, "unclear", "with it too few steps"),
    ],
)
def test_outcomes(runs, others, outcome, reason):
    (one, fine), _ = tried(Fake(**runs), "autocast", "workers=2", meter=Meter(others))
    assert one.outcome == outcome
    assert reason in one.why
    assert (one.gain is None) == (reason.startswith("with"))
    assert fine.switch == "workers=2"


def test_bursts_of_workers_are_seen_in_the_mean():
    bursts = ProcessRecord(step_seconds=(0.01, 0.01, 0.01, 0.17) * 10, losses=(1.0,))
    run = ScriptRun(command=("t.py",), exit_code=0, ended="finished", records=[bursts])
    (one,), _ = tried(Fake(none=run, workers_is_8=made(0.01, (1.0,))), "workers=8")
    assert one.gain == pytest.approx(5.0, rel=0.2)


def test_unlike_losses():
    nan = float("nan")
    assert loss_difference((1.0, nan), (1.0, nan)) == 0.0
    assert loss_difference((1.0, 1.0), (nan, 1.0)) == loss_difference((1.0, 1.0), (1.0, nan)) == float("inf")
    assert loss_difference((1.0,) * 12, (1.0,) * 10 + (9.0, 9.0)) == 0.0
    assert loss_difference((1.0, 5.0), (1.0,)) == 0.0


def test_verdicts_by_the_worst_pair_of_runs():
    assert judge_times([1.0, 1.1], [0.9, 0.8], 0.0)[0] == "faster"
    assert judge_times([1.0, 1.1], [0.99, 0.8], 0.0)[0] == "unclear"
    assert judge_times([1.0, 1.0], [1.2, 1.1], 0.0)[0] == "slower"
    results, _ = tried(Fake(autocast=made(0.05), workers_is_2=CRASH), "autocast", "workers=2")
    columns = tried_lines(results)
    cells = ["autocast", "100 ms", "50.0 ms", "2.00 (2.00 to 2.00)", "faster", "0", "0"]
    assert re.split(r"\s{2,}", columns[1]) == cells
    assert (len(columns), len(tried_lines([]))) == (3, 1)


@pytest.mark.slow
def test_workers_reach_a_real_script():
    """Through real processes; the gain itself is the machine's affair."""
    base = [sys.executable, str(SCRIPTS / "healthy" / "plain.py")]
    run = run_script(base, steps=20, seconds=60, experiments=False, quiet=True)
    (one,) = try_cures(base, [finding("workers=2")], run, steps=20, seconds=60, echo=print, meter=Meter())
    assert one.outcome != "failed", one.why
    assert len(one.base_s) == len(one.cured_s) == 3
    assert one.difference is not None


# What the script gets

DATA = TensorDataset(torch.arange(6))


@pytest.fixture
def apply(monkeypatch):
    """`cures.apply`, whose patches are undone afterwards."""
    for owner, name in ((DataLoader, "__init__"), (nn.Module, "__call__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.syspath_prepend(str(INJECT))
    return importlib.import_module("hasten_probe.cures").apply


def test_workers_reach_map_style_loaders_however_they_were_called(apply):
    from monai.data import DataLoader as MonaiLoader

    apply("workers=2")
    loader = DataLoader(DATA, 2, False)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 2)
    given = DataLoader(DATA, batch_size=3, num_workers=0, drop_last=True)
    assert (given.num_workers, given.drop_last) == (2, True)
    assert MonaiLoader(DATA, batch_size=2, num_workers=0).num_workers == 2
    assert [len(batch[0]) for batch in loader] == [2, 2, 2]
    del loader, given

    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    # Each worker would read the whole stream.
    assert DataLoader(Stream()).num_workers == 0


def test_no_workers_take_their_options_along(apply):
    apply("workers=0")
    loader = DataLoader(DATA, num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_autocast_around_the_outermost_module_only(apply):
    apply("autocast")
    seen = []

    class Inner(nn.Linear):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    class Loss(nn.Module):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return x["out"].sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(4, 4)

        def forward(self, x):
            return {"out": self.inner(x)}

    out = Net()(torch.rand(2, 4))
    assert out["out"].dtype is torch.float32
    Loss()(out).backward()
    assert seen == [True, False]
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_within_a_network_leaves_the_next_call_whole(apply):
    apply("autocast")
    net = nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        net(torch.rand(2, 3))
    assert not torch.equal(net(torch.full((1, 4), 0.1)), net.forward(torch.full((1, 4), 0.1)))
