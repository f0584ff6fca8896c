"""Cures tried on made-up runs: outcome and agreement of the losses; and once on a real script."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from hasten.study.finding import Finding
from hasten.study.script.launch import ScriptRun, run_script
from hasten.study.script.records import ProcessRecord
from hasten.study.script.report import tried_lines
from hasten.study.script.try_cures import LOW_PRECISION, compare_losses, judge_times, loss_difference, try_cures

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
    assert one.agreement.startswith("within bfloat16's precision (0.001")
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
        ({"none": made(steps=0)}, 0.0, "unclear", "without it only 0 steps"),
        ({"none": made(steps=2)}, 0.0, "unclear", "without it only 0 steps"),
        ({"autocast": made(ended="never trained")}, 0.0, "unclear", "with it only 0 steps"),
        ({"autocast": made(ended="timeout", exit_code=143, steps=0)}, 0.0, "unclear", "with it only 0 steps"),
    ],
)
def test_outcomes(runs, others, outcome, reason):
    (one, fine), _ = tried(Fake(**runs), "autocast", "workers=2", meter=Meter(others))
    assert one.outcome == outcome
    assert reason in one.why
    assert (one.gain is None) == (reason.startswith("with"))
    assert fine.switch == "workers=2"


def test_no_cure_is_begun_when_time_is_up():
    clock = itertools.count(step=100).__next__
    results, said = tried(Fake(), "autocast", "workers=2", clock=clock, budget_s=150.0)
    assert [one.switch for one in results] == ["autocast"]
    assert said[-1] == "no time left to try workers=2"


def test_bursts_of_workers_are_seen_in_the_mean():
    bursts = ProcessRecord(step_seconds=(0.01, 0.01, 0.01, 0.17) * 10, losses=(1.0,))
    run = ScriptRun(command=("t.py",), exit_code=0, ended="finished", records=[bursts])
    (one,), _ = tried(Fake(none=run, workers_is_8=made(0.01, (1.0,))), "workers=8")
    assert one.gain == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize(
    ("base", "cured", "message"),
    [
        ([(1.0, 0.5)] * 2, [(1.0, 0.5)], "exact"),
        ([(1.0, 0.5)] * 2, [(1.000001, 0.5)], "within rounding (1e-06)"),
        ([(1.0, 0.5), (1.0001, 0.5)], [(1.0002, 0.5)], "within rounding (0.0002)"),
        ([(1.0, 0.5)] * 2, [(1.0, 0.505)], "differs (0.01)"),
        ([(1.0, 0.5), (1.2, 0.4)], [(1.0, 0.5)], "not comparable: the script's own runs differ by 0.2"),
        ([(1.0, 0.5)], [()], "not comparable: no losses were seen"),
        ([()], [(1.0,)], "not comparable: no losses were seen"),
    ],
)
def test_agreement_of_the_losses(base, cured, message):
    assert compare_losses(base, cured)[1] == message


def test_autocast_may_change_losses_within_its_precision():
    assert compare_losses([(1.0, 0.5)] * 2, [(1.0, 0.505)], LOW_PRECISION)[1] == "within bfloat16's precision (0.01)"


def test_unlike_losses():
    nan = float("nan")
    assert loss_difference((1.0, nan), (1.0, nan)) == 0.0
    assert loss_difference((1.0, 1.0), (nan, 1.0)) == loss_difference((1.0, 1.0), (1.0, nan)) == float("inf")
    assert loss_difference((1.0,) * 12, (1.0,) * 10 + (9.0, 9.0)) == 0.0
    assert loss_difference((1.0, 5.0), (1.0,)) == 0.0


def test_verdicts_by_the_worst_pair_of_runs():
    assert judge_times([1.0, 1.1], [0.9, 0.8], 0.0)[3] == "faster"
    assert judge_times([1.0, 1.1], [0.99, 0.8], 0.0)[3] == "unclear"
    assert judge_times([1.0, 1.0], [1.2, 1.1], 0.0)[3] == "slower"


def test_tables():
    results, _ = tried(Fake(autocast=made(0.05), workers_is_2=CRASH), "autocast", "workers=2")
    columns = tried_lines(results)
    cells = ["autocast", "100 ms", "50.0 ms", "2.00 (2.00 to 2.00)", "faster", "within rounding (0)"]
    assert re.split(r"\s{2,}", columns[1])[:5] == cells[:5]
    assert len(columns) == 3
    assert len(tried_lines([])) == 1


@pytest.mark.slow
def test_workers_reach_a_real_script():
    """Through real processes; the gain itself is the machine's affair."""
    base = [sys.executable, str(SCRIPTS / "bad" / "no_workers.py")]
    run = run_script(base, steps=20, seconds=60, experiments=False, quiet=True)
    (one,) = try_cures(base, [finding("workers=2")], run, steps=20, seconds=60, echo=print, meter=Meter())
    assert one.outcome != "failed", one.why
    assert len(one.base_s) == len(one.cured_s) == 3
    # Its dataset draws in the workers.
    assert one.agreement.startswith("differs")
    assert run.records[0].losses
