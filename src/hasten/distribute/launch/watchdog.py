"""A watchdog: a rank that makes no step writes its stacks and ends, so that a job never hangs."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from torch import distributed

from hasten.distribute.world import World

STALLED = 124
"""Exit code of a stalled rank; as that of timeout(1)."""
VARIABLE = "HASTEN_STALL_SECONDS"
LAUNCHED = "HASTEN_LAUNCH"
"""Set for ranks that `hasten launch` has started."""
_POLLS = 8
"""Polls within the time that a step may take."""
_MAX_POLL_S = 1.0
"""Maximum seconds between polls."""
_HARD_EXIT_S = 5.0
"""Further seconds after which a process that blocks even this thread is ended from outside of Python."""


@dataclass(frozen=True, slots=True)
class Stall:
    """How far a rank is, where it may have stalled."""

    pid: int
    step: int
    """The last one that it finished; -1 for none."""
    collectives: int
    """Number of collectives that it had begun: a rank that waits for another has begun one more than the other."""


def stack_file(where: Path, rank: int) -> Path:
    """The file in which a rank writes how far it is, a `Stall` in JSON, and below, once it stalled, its stacks."""
    return where / f"rank-{rank}.stack.txt"


class Watchdog:
    """Context manager around the steps: call `beat(step)` after each. After `stall_s` without one the process ends.

    It starts to count at the first beat, and does not count in `paused()`. By then the rank's place and stacks are in
    `stack_file` in the folder `where`, and the stacks on standard error. A process whose
    interpreter is held by other code is ended all the same, with exit code 1.
    """

    def __init__(self, *, rank: int, stall_s: float, where: Path) -> None:
        if stall_s <= 0:
            raise ValueError(f"stall_s={stall_s}: must be above 0")
        self.rank, self.stall_s, self.where = rank, stall_s, where
        self._step: int | None = None
        self._pauses = 0
        self._last_step: tuple[int | None, float] = (None, 0.0)
        self._stall_written = False
        self._ended = threading.Event()
        self._stack: IO[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, step: int) -> None:
        """A step is done. Costs one assignment."""
        self._step = step

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager for work that may take long and is not a step: a validation, a compilation, a checkpoint."""
        self._pauses += 1
        try:
            yield
        finally:
            self._last_step = (self._step, time.monotonic())
            self._pauses -= 1

    def look(self) -> bool:
        """Whether the rank has stalled for too long. The thread calls it regularly."""
        now, step = time.monotonic(), self._step
        if step is None or self._pauses or step != self._last_step[0]:
            self._last_step, self._stall_written = (step, now), False
            return False
        still = now - self._last_step[1]
        if still >= self.stall_s / 2 and not self._stall_written:
            # Early: when the first rank ends, the ranks that end with it have written their positions.
            self._stall_written = True
            self._note()
        return still >= self.stall_s

    def __enter__(self) -> Watchdog:
        self.where.mkdir(parents=True, exist_ok=True)
        self._stack = stack_file(self.where, self.rank).open("w", encoding="utf-8")
        self._note()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self._stack is not None:
            self._stack.close()
        if error is None:
            stack_file(self.where, self.rank).unlink(missing_ok=True)

    def _watch(self) -> None:
        every = min(_MAX_POLL_S, self.stall_s / _POLLS)
        while not self._ended.wait(every):
            if self.look():
                self._end()
                return
            if self._step is None or self._pauses:
                faulthandler.cancel_dump_traceback_later()
            elif self._stack is not None:
                # Runs outside of Python, for code that never releases the GIL.
                remaining_s = self.stall_s - (time.monotonic() - self._last_step[1])
                faulthandler.dump_traceback_later(remaining_s + _HARD_EXIT_S, exit=True, file=self._stack)

    def _note(self) -> None:
        """Write the rank's place as the first line of its file, for the launcher."""
        if self._stack is None:
            return
        step, collectives = (-1, -1) if self._step is None else (self._step, _collectives())
        self._stack.seek(0)
        self._stack.truncate()
        print(json.dumps(asdict(Stall(os.getpid(), step, collectives))), file=self._stack, flush=True)

    def _end(self) -> None:
        self._note()
        # Hasten's launcher copies the stacks into the rank's log; under another launcher, the rank prints them itself.
        for file in (self._stack, None if LAUNCHED in os.environ else sys.stderr):
            if file is not None:
                faulthandler.dump_traceback(file)
        os._exit(STALLED)


def watchdog_of(world: World, where: Path, *, timeout_s: float) -> Watchdog | None:
    """The watchdog of a rank of several; a single process has none unless --stall-seconds is set.

    The launcher's --stall-seconds counts; else half of the collectives' timeout, so that a rank that hangs is detected
    before they give up. 0 is none.
    """
    value = os.environ.get(VARIABLE, "")
    try:
        stall_s = float(value) if value else (timeout_s / 2 if world.size > 1 else 0.0)
    except ValueError:
        raise ValueError(f"{VARIABLE}={value}: must be a number of seconds") from None
    return Watchdog(rank=world.rank, stall_s=stall_s, where=where) if stall_s > 0 else None


def _collectives() -> int:
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    group: Any = distributed.distributed_c10d._get_default_group()
    return int(group._get_sequence_number_for_group())
