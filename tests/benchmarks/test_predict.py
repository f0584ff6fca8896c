"""A measurement that is longer than one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.predictions.turns import UNFINISHED, Turn, run_turns


def test_a_call_goes_on_with_the_turns_that_are_left(tmp_path: Path) -> None:
    ran: list[int] = []

    def turns() -> list[Turn]:
        return [Turn("arm", number, lambda number=number: ran.append(number) or {"s": number}) for number in range(3)]  # type: ignore[misc,func-returns-value]

    file = tmp_path / "turns.jsonl"
    for calls in (1, 2):  # no time is left, so that each call runs its first turn alone
        with pytest.raises(SystemExit) as left:
            run_turns("part", turns(), file, {"size": (1, 2)}, stop_at=0.0)
        assert left.value.code == UNFINISHED
        assert ran == list(range(calls))
    assert run_turns("part", turns(), file, {"size": (1, 2)}, stop_at=None) == [{"s": 0}, {"s": 1}, {"s": 2}]
    assert ran == [0, 1, 2]
    run_turns("part", turns(), file, {"size": (1, 3)}, stop_at=None)  # other settings are measured anew
    assert ran == [0, 1, 2] * 2
