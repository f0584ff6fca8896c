"""The one report of a failed job: who failed first and how, what became of the others, and what to do now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.distribute.launch.ends import End, first_of
from hasten.distribute.launch.watchdog import STALLED
from hasten.observe.rundir import CHECKPOINTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed job, as far as this host knows of it."""

    ends: Sequence[End]
    """The ends of all known ranks, at least one."""
    size: int
    lost: Sequence[str] = ()
    """Hosts that did not report how their ranks ended."""
    restarts: int = 0
    """How often the job had been started again."""


def report_of(failure: Failure, *, logs: Path, out: Path, again: str, resume: str) -> str:
    """again, resume: commands that restart the job from the start, and from its last checkpoint."""
    first = first_of(failure.ends)
    if first.how == "mistake":
        return f"error: {first.message}"
    lines = []
    if failure.lost:
        lines.append(f"error: lost {' and '.join(failure.lost)}: it does not answer any more")
    where = f"rank {first.rank} of {failure.size} on {first.host}"
    tries = f" (restart {failure.restarts})" if failure.restarts else ""
    # If the lost host is the cause, only that host has the error.
    lines.append(
        f"{where}{tries} {first.in_words}"
        if failure.lost
        else f"error: {where} failed first{tries}: it {first.in_words}"
    )
    if first.message and first.how != "error":
        lines.append(f"  {_one_line(first.message)}")
    if first.traceback and first.how != "gone":
        title = {"stalled": "what it was doing", "killed": "last lines of its log", "silent": "last lines of its log"}
        lines.append(f"{title.get(first.how, 'its traceback')}:")
        lines += [f"  {line}" for line in first.traceback.rstrip().splitlines()]
    lines += [_other(end, first) for end in failure.ends if end.rank != first.rank]
    lines.append(f"logs: {logs}")
    lines.append(_what_now(first, out=out, again=again, resume=resume))
    return "\n".join(lines)


def exit_code_of(first: End) -> int:
    """Exit code, by the rank that failed first: 2 a mistake, 124 a stall, 128 + the signal that killed it."""
    match first.how:
        case "mistake":
            return 2
        case "stalled" | "stopped":
            return STALLED
        case "killed":
            return 128 - first.exit_code
    return first.exit_code if first.exit_code > 0 else 1


def _other(end: End, first: End) -> str:
    name = f"rank {end.rank} on {end.host}"
    if end.how in ("gone", "ended"):
        return f"{name}: ended as rank {first.rank} was gone"
    if end.how == "stalled" and first.how in ("stalled", "stopped"):
        return f"{name}: waited for rank {first.rank} after step {end.step}"
    return f"{name}: {end.in_words} too" + (f" ({_one_line(end.message)})" if end.message else "")


def _what_now(first: End, *, out: Path, again: str, resume: str) -> str:
    saved = any((out / CHECKPOINTS).glob("last*"))
    advice = f"go on from the last checkpoint: {resume}" if saved else f"nothing was saved yet; start again: {again}"
    if first.how == "memory":
        return f"take a smaller sample.batch_size or network, or more processes, then {advice}"
    return advice


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else ""
