"""Cures tried on made-up runs: verdict, agreement of the losses, what wins together; and once on a real script."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from hasten.study.finding import Finding
from hasten.study.script.launch import ScriptRun
from hasten.study.script.records import ProcessRecord
from hasten.study.script.report import tried_lines
from hasten.study.script.try_cures import compare_losses, cure_of, judge_times, line, loss_difference, try_cures

SCRIPTS = Path(__file__).parents[1] / "scripts"


class Meter:
    def __init__(self, others=0.0):
        self.value = others

    def others(self):
        return self.value


def finding(name, cure="", where="t.py:1"):
    return Finding(name=name, title=name, where=where, cure=cure)


def made(step_s=0.1, losses=(1.0, 0.9, 0.8), cures=None, ended="bounded", exit_code=0, output="", steps=20):
    record = ProcessRecord(step_seconds=(step_s,) * steps, losses=tuple(losses), cures=cures or {})
    return ScriptRun(
        command=("t.py",), exit_code=exit_code, ended=ended, records=[record] if steps else [], output=output
    )


class Fake:
    """Stands in for `run_script`: what a run with the given cures gives, and a list of those asked for."""

    def __init__(self, **by_cure):
        self.by_cure = {name.replace("_", "-").replace("-is-", "="): value for name, value in by_cure.items()}
        self.asked = []

    def __call__(self, command, *, steps, seconds, cures, experiments, quiet):
        assert (steps, seconds, experiments, quiet) == (30, 60.0, False, True)
        self.asked.append(tuple(cures))
        value = self.by_cure.get("+".join(cures) or "none", made())
        return next(value) if hasattr(value, "__next__") else value


def tried(fake, *findings, **more):
    said = []
    options = {"steps": 30, "seconds": 60.0, "echo": said.append, "run": fake, "meter": Meter(), **more}
    return try_cures(["t.py"], findings, made(), **options), said


@pytest.mark.parametrize("ended", ["timeout", "finished", "never trained"])
def test_too_few_steps_are_no_failure(ended):
    late = made(ended=ended, steps=0, exit_code=143, output="epoch 3, loss 0.7")
    (one,), _ = tried(Fake(set_to_none=late), finding("zero-grad-memset"))
    assert (one.outcome, one.gain) == ("unclear", None)
    assert one.why == "with it the script made only 0 steps in 0 s, too few to compare; give it more --seconds"
    assert "epoch 3" not in line(one)


def test_a_failure_is_told_by_its_error():
    output = "Traceback ...\nRuntimeError: shapes differ\nwandb: run ended"
    (one,), _ = tried(Fake(set_to_none=made(ended="crashed", exit_code=1, output=output)), finding("zero-grad-memset"))
    assert one.why.endswith("crashed with exit code 1: RuntimeError: shapes differ")


def test_cures_by_finding():
    assert cure_of(finding("no-workers", "DataLoader(..., num_workers=4, persistent_workers=True)")) == "workers=4"
    assert cure_of(finding("few-workers", "num_workers = 8")) == "workers=8"
    assert cure_of(finding("no-prefetch", "DataLoader(..., prefetch_factor=4)")) == "prefetch=4"
    assert cure_of(finding("no-workers", "more workers")) is None
    assert cure_of(finding("no-autocast")) == "autocast"
    assert cure_of(finding("host-read", "move .item() out")) is None


def test_every_cure_named_here_exists(monkeypatch):
    import importlib

    import hasten.study.script
    from hasten.study.script.try_cures import _NUMBERS, CURE_OF

    monkeypatch.syspath_prepend(str(Path(hasten.study.script.__file__).parent / "inject"))
    known = importlib.import_module("hasten_probe.cures").CURES
    assert {*CURE_OF.values(), *_NUMBERS.values()} <= set(known)


def test_runs_come_in_turns_and_a_clear_gain_wins():
    fake = Fake(autocast=made(0.05, (1.001, 0.899, 0.8)))
    (one,), said = tried(fake, finding("no-autocast"), finding("host-read"))
    assert fake.asked == [(), ("autocast",), ("autocast",), (), (), ("autocast",)]
    assert (one.outcome, one.won, one.findings) == ("faster", True, ("no-autocast",))
    assert one.gain == pytest.approx(2.0)
    assert one.agreement.startswith("within bfloat16's precision (0.001")
    assert len(one.base_s) == len(one.cured_s) == 3
    assert said[0] == "trying autocast: 3 runs with it and 3 without, interleaved"
    assert "faster, 2.00 times as fast" in said[1]


def test_winners_are_tried_together():
    fake = Fake(
        autocast=made(0.05),
        workers_is_2=made(0.06),
        set_to_none=made(0.2),
        **{"workers=2+autocast": made(0.03)},
    )
    entries = (finding("no-workers", "num_workers=2"), finding("no-autocast"), finding("zero-grad-memset"))
    results, _ = tried(fake, *entries)
    assert [one.cures for one in results] == [
        ("workers=2",),
        ("autocast",),
        ("set-to-none",),
        ("workers=2", "autocast"),
    ]
    assert [one.outcome for one in results] == ["faster", "faster", "slower", "faster"]
    assert results[-1].findings == ("no-workers", "no-autocast")
    assert results[-1].gain == pytest.approx(0.1 / 0.03)


def test_one_cure_for_two_findings_is_tried_once():
    fake = Fake()
    results, _ = tried(fake, finding("profiler-on"), finding("nvtx-on"))
    assert [one.findings for one in results] == [("profiler-on", "nvtx-on")]
    assert (results[0].outcome, results[0].agreement) == ("same", "exact")


def test_a_busy_machine_concludes_nothing():
    (one,), _ = tried(Fake(autocast=made(0.01)), finding("no-autocast"), meter=Meter(0.9))
    assert (one.outcome, one.won) == ("unclear", False)
    assert one.why == "other programs used 0.9 cores meanwhile"


def test_runs_that_overlap_are_unclear():
    cured = itertools.cycle([made(0.05), made(0.09), made(0.12)])
    (one,), _ = tried(Fake(autocast=cured), finding("no-autocast"))
    assert (one.outcome, one.why) == ("unclear", "the runs with and without it overlap")


def test_a_cure_that_breaks_the_script_is_told_and_the_next_one_tried():
    crash = made(ended="crashed", exit_code=1, output="Traceback\nRuntimeError: unsafe to autocast\n")
    (broken, fine), said = tried(Fake(autocast=crash), finding("no-autocast"), finding("zero-grad-memset"))
    assert (broken.outcome, broken.gain) == ("failed", None)
    assert broken.why == "with it the script crashed with exit code 1: RuntimeError: unsafe to autocast"
    assert fine.outcome == "same"
    assert "failed: with it the script crashed" in said[1]


def test_a_cure_that_could_not_be_applied():
    refused = made(cures={"pin-memory": "ValueError: pin-memory needs a CUDA device"})
    (one,), _ = tried(Fake(pin_memory=refused), finding("unpinned-memory"))
    assert (one.outcome, one.why) == ("failed", "ValueError: pin-memory needs a CUDA device")


@pytest.mark.parametrize("run", [made(steps=0), made(steps=2), made(ended="never trained")])
def test_a_script_that_does_not_train_again(run):
    (one,), _ = tried(Fake(none=run), finding("no-autocast"))
    assert one.outcome == "unclear"
    assert one.why.startswith("without it the script made only")


def test_no_cure_is_begun_when_time_is_up():
    clock = itertools.count(step=100).__next__
    results, said = tried(Fake(), finding("no-autocast"), finding("zero-grad-memset"), clock=clock, budget_s=150.0)
    assert [one.cures for one in results] == [("autocast",)]
    assert said[-1] == "no time left to try set-to-none"


def test_a_cache_that_saw_no_second_epoch():
    (one,), _ = tried(Fake(), finding("uncached-items"))
    assert (one.outcome, one.why) == ("same", "a cache gains from its second epoch on, and these runs had 30 steps")


def test_bursts_of_workers_are_seen_in_the_mean():
    bursts = ProcessRecord(step_seconds=(0.01, 0.01, 0.01, 0.17) * 10, losses=(1.0,))
    run = ScriptRun(command=("t.py",), exit_code=0, ended="finished", records=[bursts])
    (one,), _ = tried(Fake(none=run, workers_is_8=made(0.01, (1.0,))), finding("few-workers", "num_workers=8"))
    assert one.gain == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize(
    ("base", "cured", "message"),
    [
        ([(1.0, 0.5)] * 2, [(1.0, 0.5)], "exact"),
        ([(1.0, 0.5)] * 2, [(1.000001, 0.5)], "within rounding (1e-06)"),
        ([(1.0, 0.5), (1.0001, 0.5)], [(1.0002, 0.5)], "within rounding (0.0002)"),
        ([(1.0, 0.5)] * 2, [(1.0, 0.505)], "differs (0.01)"),
        ([(1.0, 0.5)] * 2, [(1.0, 0.7)], "differs (0.3)"),
        ([(1.0, 0.5), (1.2, 0.4)], [(1.0, 0.5)], "not comparable: the script's own runs differ by 0.2"),
        ([(1.0, 0.5)], [()], "not comparable: no losses were seen"),
        ([()], [(1.0,)], "not comparable: no losses were seen"),
    ],
)
def test_agreement_of_the_losses(base, cured, message):
    assert compare_losses(base, cured)[1] == message


def test_what_a_cure_may_change():
    runs = [(1.0, 0.5)] * 2, [(1.0, 0.505)]
    assert compare_losses(*runs, ("autocast",))[1] == "within bfloat16's precision (0.01)"
    assert compare_losses(*runs, ("workers=2",))[1] == "differs (0.01): each worker draws its own random numbers"


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
    assert judge_times([1.0, 1.01], [1.0, 1.02], 0.0)[3] == "same"


def test_tables():
    fake = Fake(autocast=made(0.05), set_to_none=made(ended="crashed", exit_code=3, output="a | b"))
    results, _ = tried(fake, finding("no-autocast"), finding("zero-grad-memset"))
    columns = tried_lines(results)
    cells = ["autocast", "no-autocast", "100 ms", "50.0 ms", "2.00 (2.00 to 2.00)", "faster", "exact"]
    assert re.split(r"\s{2,}", columns[1]) == cells
    assert columns[1].index("no-autocast") == columns[0].index("For")
    assert len(columns) == 3
    assert tried_lines([]) == ["None of the findings has a cure that can be applied from outside."]
    assert line(results[1]).startswith("set-to-none: failed")


@pytest.mark.slow
def test_workers_gain_on_a_real_script():
    """Through real processes; the gain itself is the machine's affair."""
    base = [sys.executable, str(SCRIPTS / "bad" / "no_workers.py")]
    from hasten.study.script.launch import run_script

    run = run_script(base, steps=20, seconds=60, experiments=False, quiet=True)
    cure = finding("no-workers", "DataLoader(..., num_workers=2)")
    (one,) = try_cures(base, [cure], run, steps=20, seconds=60, echo=print, runs=2, meter=Meter())
    assert one.outcome != "failed", one.why
    assert len(one.base_s) == len(one.cured_s) == 2
    # Its dataset draws in the workers.
    assert one.agreement.endswith("each worker draws its own random numbers")
    assert run.records[0].losses
