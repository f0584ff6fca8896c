"""Faults that tests and trials put in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.distribute.launch.faults import VARIABLE, faults_of
from hasten.distribute.world import World

RANK = World(rank=1, size=2)


def test_a_rank_that_is_not_named_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "kill@0:5, hang@2:12"):
        monkeypatch.setenv(VARIABLE, text)
        assert faults_of(RANK, tmp_path) is None


@pytest.mark.parametrize("text", ["kill", "kill@1", "kill@1:x", "burn@1:5", "kill@-1:5", "kill@1:5;hang@0:1"])
def test_what_is_no_fault(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=r"kind@rank:step .*kill, hang, oom, sigterm, error"):
        faults_of(RANK, tmp_path)


def test_each_happens_once_even_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "error@1:5,error@1:7")
    befall = faults_of(RANK, tmp_path)
    assert befall is not None
    befall(4)
    with pytest.raises(RuntimeError, match="after step 5"):
        befall(5)
    again = faults_of(RANK, tmp_path)
    assert again is not None
    again(5)
    with pytest.raises(RuntimeError, match="after step 7"):
        again(7)
