"""Turns of a measurement that takes longer than one call: each is kept in a file, and the next call goes on there."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

UNFINISHED = 75
"""Exit status of a call that has left turns for the next one (EX_TEMPFAIL)."""
_UNKNOWN = 2.0
"""How many times the longest turn so far an arm's first one is taken to last."""


class Turn(NamedTuple):
    """One measurement of one arm."""

    arm: str
    number: int
    """Of the arm's turns, from 0."""
    work: Callable[[], dict[str, Any]]
    """Gives the figures."""


def run_turns(
    part: str, turns: Sequence[Turn], file: Path, settings: Mapping[str, Any], stop_at: float | None
) -> list[dict[str, Any]]:
    """The figures of each turn; those of an earlier call with the same settings are taken from `file`.

    stop_at: `time.perf_counter()` after which no turn shall end. The first turn of a call runs whatever it takes; one
    that is not expected to end in time leaves with the exit status UNFINISHED.
    """
    finished = _read(file, json.loads(json.dumps(settings)))
    figures, walls = list[dict[str, Any]](), dict[str, list[float]]()
    for line in finished.values():
        walls.setdefault(line["arm"], []).append(line["wall_s"])
    began = False
    for position, turn in enumerate(turns):
        line = finished.get((turn.arm, turn.number))
        if line is None:
            expected = max(walls.get(turn.arm) or [_UNKNOWN * max((max(each) for each in walls.values()), default=0.0)])
            if began and stop_at is not None and time.perf_counter() + expected > stop_at:
                print(f"{part}: {_left(turns[position:], walls)}; run the same command again", file=sys.stderr)
                raise SystemExit(UNFINISHED)
            began, start = True, time.perf_counter()
            line = {"arm": turn.arm, "number": turn.number, "figures": turn.work(), "settings": settings}
            line["wall_s"] = time.perf_counter() - start
            walls.setdefault(turn.arm, []).append(line["wall_s"])
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as stream:
                stream.write(f"{json.dumps(line)}\n")
            shown = ", ".join(f"{name} {value:.4g}" for name, value in line["figures"].items() if _is_number(value))
            progress = f"{part}: {turn.arm} {turn.number + 1}: {shown} ({line['wall_s']:.0f} s in all)"
            print(f"{progress}; {_left(turns[position + 1 :], walls)}", file=sys.stderr)
        figures.append(line["figures"])
    return figures


def _read(file: Path, settings: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    return {(line["arm"], line["number"]): line for line in lines if line["settings"] == settings}


def _left(turns: Sequence[Turn], walls: Mapping[str, list[float]]) -> str:
    known = [statistics.mean(walls[turn.arm]) for turn in turns if turn.arm in walls]
    more = " or more" if len(known) < len(turns) else ""
    return f"{len(turns)} turns left, about {sum(known) / 60:.1f} min{more}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
