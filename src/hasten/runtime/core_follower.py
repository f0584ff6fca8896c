"""The number of torch's threads on a CPU, which follows the cores that other programs leave.

A thread that shares its core with another program takes twice as long for its part of each operation, and all others
wait for it: one thread less is faster.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import psutil
import torch

from hasten.observe.cores import allowed_cpus, spin_is_chosen, spin_text, usable_cores
from hasten.observe.cpu_load import BUSY, LoadMeter

log = logging.getLogger(__name__)

_EVERY_S = 0.5
"""Seconds between readings of the load, at least."""
_FRESH_S = 0.2
"""Seconds of a reading that tells nothing of what ran before it."""
_CLEAR = 0.6
"""Cores by which a reading must differ from the threads: what others use varies, and a change costs a little."""


class CoreFollower:
    """Sets torch's threads by the cores that others leave: after the first reading, then if two in a row agree."""

    def __init__(
        self,
        least: int,
        most: int,
        meter: LoadMeter,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """least, most: threads; `most` on a quiet machine."""
        self.least, self.most, self.threads = least, most, most
        self._meter, self._clock, self._sleep, self._cores = meter, clock, sleep, len(allowed_cpus())
        self._read_at, self._told = clock(), False
        self._wanted: int | None = None
        self.slowed = 1.0
        """Times as long as on a quiet machine that one thread takes, by the last reading."""

    def look(self, *, anew: bool = False) -> None:
        """Read the load, if it is time, and set the threads of the calling thread's operators.

        anew: of the next moment alone, and decide by that. What ran since the last reading (compilers, the preparation
        of cases) says nothing of what a measurement will meet.
        """
        if self._clock() - self._read_at < _EVERY_S:
            return
        others = self._meter.others()
        if anew:
            self._sleep(_FRESH_S)
            others = self._meter.others()
        self._read_at, self.slowed = self._clock(), max(1.0, (others + 1) / self._cores)
        wanted = self._fitting(self._cores - others)
        load = f"other programs use {others:.1f} of {self._cores} cores"
        if wanted != self.threads and (anew or self._wanted in (None, wanted)):
            log.info("torch uses %d threads: %s", wanted, load)
            self.threads = wanted
            torch.set_num_threads(wanted)
        self._wanted = wanted
        if others > BUSY and self.threads > 1 and not self._told and not spin_is_chosen():
            self._told = True
            log.warning(
                "%s, and torch's threads keep theirs busy while they wait for one another, as torch was imported "
                "before hasten: import hasten first, or export %s",
                load,
                spin_text(),
            )

    def _fitting(self, left: float) -> int:
        return max(self.least, min(self.most, self.threads if abs(left - self.threads) <= _CLEAR else round(left)))


_FOLLOWER: ContextVar[CoreFollower | None] = ContextVar("follower", default=None)
"""Follower of the calling thread; other threads begin without one."""


@contextmanager
def cores_followed(device: torch.device) -> Iterator[None]:
    """Let torch's threads follow the cores left within the block, wherever it calls `follow_cores`.

    On a GPU, and where the user has chosen a number or asks for deterministic results, it stays as it is.
    """
    if device.type != "cpu" or _FOLLOWER.get() is not None:
        yield
        return
    before = torch.get_num_threads()
    least = most = before
    if not _is_chosen(before):
        most = min(before, usable_cores())
        least = -(-most // 2)  # others take what is given up, and would in the end leave a single core of many
        torch.set_num_threads(most)
    # Finding child processes takes longer than a reading should; their cores are not left to this one either.
    token = _FOLLOWER.set(CoreFollower(least, most, LoadMeter(time.process_time)))
    try:
        yield
    finally:
        _FOLLOWER.reset(token)
        torch.set_num_threads(before)


def follow_cores(*, anew: bool = False) -> None:
    """Between two operations: set torch's threads by the cores that others leave, within `cores_followed`.

    anew: by the load of the next 0.2 s alone; before a measurement.
    """
    follower = _FOLLOWER.get()
    if follower is not None:
        follower.look(anew=anew)


def slowed() -> float:
    """`CoreFollower.slowed` within `cores_followed`; 1 elsewhere."""
    follower = _FOLLOWER.get()
    return 1.0 if follower is None else follower.slowed


def keep_threads() -> None:
    """Keep the number of threads from now on, within `cores_followed`: for another one, torch compiles anew."""
    _FOLLOWER.set(None)


def _is_chosen(threads: int) -> bool:
    """Whether the user chose the number of threads; torch itself takes all cores, or without hyperthreads."""
    named = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    usual = (len(allowed_cpus()), psutil.cpu_count(logical=False))
    return named or torch.are_deterministic_algorithms_enabled() or threads not in usual
