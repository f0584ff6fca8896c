"""What is told about a run: how it ended, the verdict, the findings in their order, and the cures that were tried."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hasten.doctor.finding import Finding
from hasten.doctor.script import doctor
from hasten.doctor.script.launch import ScriptRun
from hasten.doctor.script.records import as_record
from hasten.doctor.show import finding_lines
from hasten.observe.rundir import json_text

SITE = "/s/train.py:10"


def run(ended="bounded", code=0, steps=20, **more):
    step = {"seconds": 0.1, "parts": {"forward": 0.04, "backward": 0.04, "overhead": 0.02}, "cpu": 0.1}
    raw = {"steps": [step] * steps, "ended": "steps", "modes": {"anomaly": {"steps": 19}}, "experiments": {"cores": 2}}
    raw |= {"mode_sites": {"anomaly": SITE}, "calls": []}
    raw["calls"] = [{"kind": "gc_collect", "site": "/s/train.py:12", "count": 19, "seconds": 0.19}]
    records = [as_record(raw)] if steps else []
    command = ("python", "train.py", "--name", "two words")
    return ScriptRun(command=command, exit_code=code, ended=ended, records=records, seconds=3.0, **more)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (run(), "'two words': watched 20 training steps in 3.0 s"),
        (run("finished"), "ended by itself after 20 training steps"),
        (run("timeout", 137), "had to be stopped after 20 training steps"),
        (run("crashed", 3), "failed with exit code 3 after 20 training steps"),
        (run("crashed", 3, 0), "failed with exit code 3"),
        (run("never trained", 0, 0), "no torch.optim.Optimizer made a step"),
        (run("never trained", 0, 0, torch_seen=False), "no Python process of it imported torch"),
    ],
)
def test_how_it_ended(given, message):
    assert message in doctor.ending(given)


def test_the_summary_has_verdict_findings_and_cures_in_order():
    lines = "\n".join(doctor.lines(doctor.judge(run())))
    assert "compute-bound: 80% of its time" in lines
    assert "; 20% goes into" in lines
    assert lines.index("[gc-collect]") < lines.index("[anomaly-detection]")
    assert "costs 10.0 ms a step, predicted 1.11 times" in lines
    assert "cure  remove torch.autograd.set_detect_anomaly(True)" in lines
    assert "warning" not in lines


def test_a_busy_machine_is_told():
    lines = doctor.lines(doctor.judge(run(), others=1.2))
    assert lines[-1] == "warning: other programs used 1.2 cores meanwhile: costs and gains are rough"


def test_few_steps_are_told_and_not_judged():
    output = doctor.judge(run(steps=3))
    assert output.diagnosis is None
    assert output.findings == ()
    assert "too few steps" in doctor.lines(output)[1]


def clean(wait=0.0, **experiments):
    """A run without findings. wait: share of a step."""
    given = run()
    step = {"seconds": 0.1, "parts": {"forward": 0.1 * (1 - wait), "wait": 0.1 * wait}, "cpu": 0.1}
    seen = {"validations": [{"step": 9, "site": SITE, "seconds": 0.01}], "saves": [{"step": 0, "seconds": 0.01}]}
    given.records[0].raw.update(modes={}, calls=[], steps=[step] * 20, **seen)
    record = dataclasses.replace(given.records[0], experiments=experiments)
    return doctor.judge(dataclasses.replace(given, records=[record]))


def test_no_more_is_told_than_was_seen():
    lines = doctor.lines(clean(cores=2))
    assert lines[-1] == "no fault found: the script does what can be seen from outside as it should"
    unseen = clean(cores=2)
    loader = {"training": 20, "length": 160, "passes": [{}, {}]}  # whose first pass was ended early
    unseen.run.records[0].raw.update(validations=[], saves=[], loaders=[loader])
    assert doctor.lines(unseen)[-2:] == [
        "no fault found in what was seen of the script",
        "not seen    a validation, a checkpoint",
    ]
    # The verdict itself names a loss that no rule explains.
    lines = doctor.lines(clean(wait=0.8, cores=2))
    assert lines[-1] == "no fault found that explains why the training is input-bound; look there yourself"


@pytest.mark.parametrize(
    ("experiments", "why"),
    [
        ({"skipped": "several ranks"}, "any experiment: several ranks"),
        ({}, "any experiment: the script had ended before"),
        ({"autocast": {"error": "RuntimeError: no"}}, "autocast in bfloat16: it failed (RuntimeError: no)"),
    ],
)
def test_what_could_not_be_tried_is_told(tmp_path, experiments, why):
    report = clean(**experiments)
    assert doctor.lines(report)[-2:] == [
        "no fault found so far, but not everything was tried",
        f"not tried   {why}",
    ]
    page = doctor.write_page(report, tmp_path / "doctor.html").read_text()
    assert "No fault found so far, but not everything was tried." in page


def test_what_was_not_tried_is_told_with_the_seconds_that_it_needs():
    late = {"skipped": "a call takes 2 s, and 5 rounds of two are wanted", "needs_s": 22.4}
    lines = doctor.lines(clean(autocast=late, items={"skipped": "no DataLoader"}))
    output = "\n".join(lines)
    assert "no fault found so far, but not everything was tried" in output
    assert f"not tried   autocast in bfloat16: {late['skipped']}; needs 22 s" in output
    assert "no DataLoader" not in output
    assert lines[-1] == "give it --seconds 50 to try all of it"


def test_page_and_json_hold_it_all(tmp_path):
    output = doctor.judge(run(), others=0.9)
    saved = json.loads(json_text(doctor.content_of(output)))
    assert [each["name"] for each in saved["findings"]] == ["gc-collect", "anomaly-detection"]
    page = doctor.write_page(output, tmp_path / "doctor.html").read_text()
    for words in ("/s/train.py:12", "0.9 cores"):
        assert words in page.replace("<wbr>", "")


def test_what_had_to_be_stopped_untrained_is_a_failure():
    """Otherwise the script's own code is passed on."""
    for ended, code, steps, given in (("never trained", 137, 0, 2), ("crashed", 3, 20, 3), ("bounded", 0, 20, 0)):
        assert doctor.judge(run(ended, code, steps)).exit_code == given


def test_notes_of_one_kind_are_one_entry_on_the_terminal():
    more = {"cure": "c", "level": "note", "cost_s": 1.0, "gain": 2.0}
    notes = [Finding(name="n", title="t", where=where, evidence=f"{where} e", **more) for where in "ab"]
    now = ["      now   a e", "      now   b e"]
    assert finding_lines(notes) == ["   note: a, b: t  [n]", *now, "      cure  c"]
