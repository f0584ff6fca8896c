"""The summary and the JSON of claims."""

from __future__ import annotations

import itertools
import json

from benchmarks.guide.claim import Guidance, Outcome, Result, judged, unmeasured
from benchmarks.guide.show import summary, write
from hasten.observe.compare import compare

ENVIRONMENT = {"cores_usable": 2, "cpu": "a processor", "torch": {"version": "2.13", "devices": []}, "time_utc": "now"}


class Quiet:
    def others(self) -> float:
        return 0.0


def outcome(taken: float, **known) -> Outcome:
    arms = {"old": itertools.repeat(1.0).__next__, "new": itertools.repeat(taken).__next__}
    return judged(compare(arms, base="old", meter=Quiet()), **known)


def result(name: str, outcome: Outcome, published: str = "") -> Result:
    guidance = Guidance(
        name=name, claim=f"{name} is <b>fast</b>", source="a guide", published=published, run=lambda budget: outcome
    )
    return Result(guidance=guidance, outcome=outcome, seconds=1.5)


RESULTS = [
    result("held", outcome(0.5, note="the note"), published="4.1x"),
    result("failed", outcome(1.0)),
    result("lacking", unmeasured("needs a CUDA device")),
]


def test_summary():
    assert summary(RESULTS) == "1 of 3 claims hold on this machine, 1 do not, 1 not measured"


def test_json(tmp_path):
    facts = write(tmp_path / "deep" / "out", RESULTS, budget_s=60.0, environment=ENVIRONMENT)
    output = json.loads(facts.read_text())
    assert output["budget_s"] == 60.0
    assert output["environment"]["cpu"] == "a processor"
    held, failed, lacking = output["claims"]
    assert held["seconds"] == {"old": [1.0] * 6, "new": [0.5] * 6}
    assert held["arms"]["new"] == {"gain": 2.0, "low": 2.0, "high": 2.0, "verdict": "faster"}
    assert (held["published"], held["others_cores"], held["took_s"]) == ("4.1x", 0.0, 1.5)
    assert failed["verdict"] == "does not hold"
    assert (lacking["verdict"], lacking["why"], lacking["seconds"]) == ("not measured", "needs a CUDA device", {})
