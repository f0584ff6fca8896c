"""How the ranks of a failed job ended, which of them failed first, and the one report of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import RankRecord
from hasten.distribute.launch.watchdog import STALLED, Stall, stack_file
from hasten.files import first_line
from hasten.observe.rundir import CHECKPOINTS
from hasten.system import text_of

How = Literal["mistake", "error", "memory", "killed", "stalled", "silent", "gone", "ended"]
"""`silent`: an exit code and no record; `gone`: it lost another rank; `ended`: by the launcher, as another failed."""
_CAUSE: dict[str, int] = {"mistake": 0, "gone": 2, "ended": 3}
"""Order of the causes; the lowest number counts as the first failure. All others are 1."""
_PATIENCE_S = 20
"""Seconds from the first failure to a SIGKILL by torch's launcher, which waits 30 s for ranks that don't end."""
_LAST_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a rank ended."""

    rank: int
    host: str
    how: How
    exit_code: int
    """Negative: the number of a signal."""
    message: str = ""
    traceback: str = ""
    """The rank's traceback, or its stacks if it stalled, or the last lines of its log."""
    time: float
    """Seconds since 1970."""
    step: int = -1
    """The last step that it finished, if it stalled."""
    collectives: int = -1

    @property
    def in_words(self) -> str:
        """What happened to it, as the end of a sentence that starts with the rank."""
        match self.how:
            case "stalled":
                still = f"made no step after step {self.step}"
                return still if self.step >= 0 else "neither answered nor ended when asked to"
            case "memory":
                return "ran out of memory"
            case "killed":
                hint = " (often by the system, for want of memory: see dmesg)" if self.exit_code == -9 else ""
                return f"was killed by {_signal_name(-self.exit_code)}{hint}"
            case "silent":
                return f"ended with exit code {self.exit_code} and gave no reason"
            case "gone":
                return "lost another rank"
            case "ended":
                return "was ended"
        lines = self.traceback.strip().splitlines()
        return f"raised {lines[-1]}" if lines else "failed"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the numbers for real-time signals, which have no names
        return f"signal {number}"


def ends_of(
    failures: Mapping[int, ProcessFailure],
    records: Mapping[int, RankRecord],
    *,
    host: str,
    logs: Mapping[int, Path],
    where: Path,
) -> list[End]:
    """How the ranks of this host ended. failures: in the order in which torch saw them. where: of the watchdogs."""
    began = min((failure.timestamp for failure in failures.values()), default=0)
    ends = []
    for index, (rank, failure) in enumerate(failures.items()):
        stall, stack = _stall_of(rank, failure.pid, where)
        code, record = failure.exitcode, records.get(rank)
        end = End(rank=rank, host=host, how="silent", exit_code=code, time=float(failure.timestamp))
        if stall is not None:
            end = replace(end, step=stall.step, collectives=stall.collectives)
        if record is not None:
            # Stopped on request, or because another rank had reported the error.
            how: How = "ended" if record.kind == "stopped" or record.kind == "other" else record.kind
            end = replace(end, how=how, message=record.message, traceback=record.traceback, time=record.time)
        elif code == STALLED or (code == 1 and stack):
            end = replace(end, how="stalled", traceback=stack)
        elif code < 0:
            late = failure.timestamp - began >= _PATIENCE_S
            by_launcher = index > 0 and (code == -signal.SIGTERM or (code == -9 and late))
            end = replace(end, how="ended" if by_launcher else "killed")
        if end.how in ("silent", "killed"):
            end = replace(end, traceback="\n".join(text_of(logs[rank]).splitlines()[-_LAST_LINES:]))
        ends.append(end)
    return sorted(ends, key=lambda end: end.rank)


def first_of(ends: Sequence[End]) -> End:
    """The one that failed first: the others may have ended because of it."""
    by_cause = min(ends, key=lambda end: (_CAUSE.get(end.how, 1), end.time, end.rank))
    if by_cause.how != "stalled":
        return by_cause
    # All ranks stalled, but the others waited for one. A rank that had to be killed could not even report its stall.
    still = [end for end in ends if end.how == "stalled"]
    still += [replace(end, how="stalled") for end in ends if end.how == "ended" and end.exit_code == -9]
    return min(still, key=lambda end: (end.step, end.collectives, end.rank))


def _stall_of(rank: int, pid: int, where: Path) -> tuple[Stall | None, str]:
    """The place and the stacks that a rank's watchdog wrote, if they are of this process."""
    with suppress(ValueError, TypeError):
        place, _, stack = text_of(stack_file(where, rank)).partition("\n")
        stall = Stall(**json.loads(place))
        if stall.pid == pid:
            return stall, stack
    return None, ""


def report_of(ends: Sequence[End], job: Job, *, restarts: int, logs: Path, again: str, resume: str) -> str:
    """The report on a failed job, as far as this host knows of it.

    ends: of this host's ranks that failed, at least one. restarts: how often the job had been started again. again,
    resume: commands that restart the job from the start, and from its last checkpoint.
    """
    first = first_of(ends)
    if first.how == "mistake":
        return f"error: {first.message}"
    tries = f" (restart {restarts})" if restarts else ""
    lines = [f"error: rank {first.rank} of {job.world} on {first.host} failed first{tries}: it {first.in_words}"]
    if first.message and first.how != "error":
        lines.append(f"  {first_line(first.message)}")
    if first.how in ("gone", "ended"):
        lines.append("the cause is in the report of another host")
    elif first.traceback:
        title = {"stalled": "what it was doing", "killed": "last lines of its log", "silent": "last lines of its log"}
        lines.append(f"{title.get(first.how, 'its traceback')}:")
        lines += [f"  {line}" for line in first.traceback.rstrip().splitlines()]
    lines += [_other(end, first) for end in ends if end.rank != first.rank]
    lines.append(f"logs: {logs}")
    saved = any((job.out / CHECKPOINTS).glob("last*"))
    advice = f"resume from the last checkpoint: {resume}" if saved else f"nothing was saved yet; start again: {again}"
    smaller = "take a smaller sample.batch_size or network, or more processes, then "
    lines.append(f"{smaller if first.how == 'memory' else ''}{advice}")
    return "\n".join(lines)


def exit_code_of(first: End) -> int:
    """Exit code, by the rank that failed first: 2 a mistake, 124 a stall, 128 + the signal that killed it."""
    match first.how:
        case "mistake":
            return 2
        case "stalled":
            return STALLED
        case "killed":
            return 128 - first.exit_code
    return first.exit_code if first.exit_code > 0 else 1


def _other(end: End, first: End) -> str:
    name = f"rank {end.rank} on {end.host}"
    if end.how in ("gone", "ended"):
        return f"{name}: ended as rank {first.rank} was gone"
    if end.how == first.how == "stalled":
        return f"{name}: waited for rank {first.rank} after step {end.step}"
    return f"{name}: {end.in_words} too" + (f" ({first_line(end.message)})" if end.message else "")
