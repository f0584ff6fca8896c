"""The verdict follows from the shares; findings, their gain and their order."""

from __future__ import annotations

import pytest

from hasten.doctor.finding import Finding, gain_of, ms, ranked
from hasten.doctor.show import split_section
from hasten.doctor.time_split import GROUPS, Split, diagnose

COMPUTE = {"forward": 0.03, "backward": 0.05, "optimizer": 0.005}


def split(more=None, **known):
    parts = COMPUTE | (more or {})
    return Split(steps=20, step_s=sum(parts.values()), parts=parts, **known)


@pytest.mark.parametrize(("bound", "part"), [(bound, part) for bound, parts in GROUPS.items() for part in parts])
def test_the_largest_part_is_the_verdict(part, bound):
    result = diagnose(split({part: 0.09}))
    assert result.bound == bound
    assert f"{bound}-bound: 51%" in result.sentence


def test_the_bar_and_the_table_have_the_same_shares():
    times = split({"wait": 0.0001, "validation": 0.0148})
    section = split_section(times, diagnose(times))
    assert section.bar is not None
    assert section.table is not None
    whole_ms = sum(amount for _, amount in section.bar.parts)
    assert whole_ms == pytest.approx(1e3 * times.step_s)
    in_bar = [(name, f"{amount / whole_ms:.1%}") for name, amount in section.bar.parts]
    assert in_bar == [(row[0], row[2]) for row in section.table.rows]
    assert in_bar[-1] == ("other", "0.1%")


def test_what_is_smaller_than_the_compute_is_told_with_it():
    result = diagnose(split({"wait": 0.02}))
    assert result.bound == "compute"
    assert "81% of its time is the step itself" in result.sentence
    assert "19% goes into waiting for data" in result.sentence
    assert "goes into" not in diagnose(split({"overhead": 0.005})).sentence


def test_compute_and_small_batches():
    assert diagnose(split()).bound == "compute"
    assert diagnose(split(doubled=1.1)).bound == "launch"
    assert diagnose(split(doubled=1.9)).bound == "compute"
    assert diagnose(split(doubled=0.54)).bound == "compute", "another kernel, and no fixed cost"
    assert diagnose(split(doubled=1.1, on_cpu=True)).bound == "compute", "no launches take 80 ms"
    small = Split(steps=20, step_s=0.01, parts={"forward": 0.01}, doubled=1.1, on_cpu=True)
    assert diagnose(small).bound == "launch"
    # On a CPU a second sample may only fill idle cores.
    assert diagnose(split(doubled=1.3, on_cpu=True)).bound == "compute"


def test_a_verdict_is_judged_by_what_is_shown_beside_it():
    """Launches rule the step itself, of which the interpreter's measured part may be less than a validation."""
    result = diagnose(split({"validation": 0.045, "overhead": 0.03}, doubled=1.1))
    assert result.bound == "launch"
    assert result.measure == "twice the samples: 1.10 times as long; the step itself is 53% of the time"
    assert diagnose(split({"validation": 0.2})).measure == "70% of the time"


def test_a_floor_above_the_step_is_explained():
    assert "compute takes all of a step" in diagnose(split(fixed_batch_s=0.09)).evidence[-1]
    assert "the compute floor" in diagnose(split(fixed_batch_s=0.08)).evidence[-1]


def test_the_evidence_gives_both_ablations():
    output = " ".join(diagnose(split({"wait": 0.1}, fixed_batch_s=0.085, feed_alone_s=0.2)).evidence)
    assert "fixed batch a step takes 85.0 ms" in output
    assert "no step a batch takes 200.0 ms" in output


def finding(name, **known):
    return Finding(name=name, title=name, where="", cure="", **known)


def test_findings_are_ranked_by_gain_then_cost_notes_last():
    given = [
        finding("note", gain=9.0, level="note"),
        finding("dear", cost_s=0.2),
        finding("cheap", cost_s=0.1),
        finding("large", gain=2.0),
        finding("small", gain=1.1),
    ]
    assert [each.name for each in ranked(given)] == ["large", "small", "dear", "cheap", "note"]


def test_a_part_gains_what_the_cure_leaves_out():
    assert [gain_of(cost_s, 0.1) for cost_s in (0.05, 0.1, 0.0)] == pytest.approx([2.0, 20.0, 1.0])
    assert [ms(seconds) for seconds in (0.00012, 0.0123, 12.34)] == ["0.120 ms", "12.3 ms", "12.3 s"]
