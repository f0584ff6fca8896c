"""The rules that runs and scripts share."""

from __future__ import annotations

import pytest

from hasten.study.finding import finding_from_share

WORDS = {"name": "n", "title": "t", "where": "w", "cure": "c"}


@pytest.mark.parametrize(("cost_s", "named"), [(0.021, True), (0.019, False)])
def test_a_part_counts_from_its_share_on(cost_s, named):
    assert bool(finding_from_share(cost_s, 0.2, 0.1, **WORDS)) == named


def test_the_gain_is_that_of_what_the_cure_leaves_out():
    assert finding_from_share(0.1, 0.2, 0.1, **WORDS)[0].gain == pytest.approx(2.0)
    (result,) = finding_from_share(0.1, 0.2, 0.1, saved_s=0.05, evidence="e", **WORDS)
    assert (result.cost_s, result.gain, result.evidence) == (0.1, pytest.approx(4 / 3), "e")
    assert finding_from_share(0.1, 0.2, 0.1, saved_s=-1.0, **WORDS)[0].gain == 1.0


def test_no_step_has_no_parts():
    assert finding_from_share(0.1, 0.0, 0.1, **WORDS) == []
