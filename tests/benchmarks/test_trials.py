"""The trials' judge on outputs that are made up, and the list of trials."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.trial.judge import Ended, judge
from benchmarks.trials import PARTS, all_trials, claims_of, table

CLEAR = "error: /data/culprit.nii.gz: is cut off; copy it again.\n"
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/x/src/hasten/cases/nifti.py", line 52, in read_nifti\n'
    '  File "/x/numpy/core.py", line 9, in load\n'
    "OverflowError: too large\n"
)


def verdict(text: str, code: int = 2, expect: str = "refused", **more: object) -> str:
    ended = Ended(code=code, text=text, **{"err": text, **more})  # type: ignore[arg-type]
    return judge(ended, expect=expect, names=["culprit"]).verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLEAR, "handled"),
        ("step 1\n" * 30 + CLEAR, "handled"),
        ("error: the file is cut off; copy it again.", "poor"),
        ("error: culprit.nii.gz: no such luck", "poor"),
        ("", "poor"),
        (CLEAR + "more\n" * 12, "poor"),
        ("error: \x1b[31mculprit\x1b[0m: is cut off; copy it again.", "poor"),
        ("error: culprit\u202e: is cut off; copy it again.", "poor"),
        ("╭─ Error ─╮\n│ --out: cul │\n│ prit must be a file │\n╰──╯", "handled"),
        (CLEAR + TRACE, "traceback"),
    ],
)
def test_refusal(text: str, expected: str) -> None:
    assert verdict(text) == expected


@pytest.mark.parametrize(
    ("text", "expect", "expected"),
    [
        ("done", "refused", "silent"),
        ("done", "accepted", "handled"),
        ("done", "either", "handled"),
        ("", "warned", "silent"),
        ("1/1  culprit.nii.gz\n", "warned", "silent"),
        ("culprit.nii.gz: all its voxels are 0\n", "warned", "handled"),
        ("a file has voxels of 0\n", "warned", "poor"),
        ("1/1  \x1b[31mculprit", "accepted", "poor"),
        (TRACE, "accepted", "traceback"),
    ],
)
def test_exit_code_0(text: str, expect: str, expected: str) -> None:
    assert verdict(text, code=0, expect=expect) == expected


def test_names_are_unique_and_many() -> None:
    count = Counter((trial.family, trial.name) for trial in all_trials(PARTS))
    assert len(count) >= 570
    assert [name for name, times in count.items() if times > 1] == []


def test_claims_and_table() -> None:
    records = [{"family": "a", "verdict": "handled"}] * 198 + [{"family": "b", "verdict": "poor"}] * 2
    assert [claim.holds for claim in claims_of(records)] == [True, True]
    assert [claim.holds for claim in claims_of([*records, {"family": "b", "verdict": "poor"}])] == [True, False]
    assert [claim.holds for claim in claims_of([*records, {"family": "b", "verdict": "hang"}])] == [False, True]
    assert claims_of([*records, {"family": "a", "verdict": "skipped"}])[1].value == 0.01
    assert table(records).splitlines()[-1].split()[-1] == "200"
