"""The cores that this process may use, and how OpenMP's threads wait for one another on them.

torch's operators end with a barrier of OpenMP's threads. GNU's library (torch's wheels for Linux) lets each thread that
waits there spin for some milliseconds before it sleeps, as if the cores were its own. Where another program, or a
container's quota, keeps one thread from running, the others spin that long at each of some thousand barriers of a step.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, MutableMapping

from hasten.observe.cgroup import cpu_quota

SPIN = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"}
"""How long a thread spins: iterations of GNU's library (its default is 300,000), milliseconds of Intel's
and LLVM's (the default is 200)."""
SPIN_NAMES = (*SPIN, "OMP_WAIT_POLICY", "KMP_LIBRARY")
_OURS = "HASTEN_SPIN"
"""Says that `bound_spin` has set `SPIN`, to processes that inherit both."""


def allowed_cpus() -> set[int]:
    """Numbers of the processors that this process may run on: its affinity, which a batch system sets."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores' worth of time that this process may use: its affinity, or its container's quota."""
    cores, quota = len(allowed_cpus()), cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def bound_spin(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit the time for which OpenMP's threads spin, in this process and those that it starts.

    The libraries read it once, as they are loaded: nothing is set where torch is there already, or where
    the user set any of it.
    """
    if "torch" not in sys.modules and not spin_is_chosen(environ):
        environ.update({**SPIN, _OURS: "1"})


def spin_is_chosen(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable says how OpenMP's threads wait, set by `bound_spin` or by the user."""
    return any(name in environ for name in SPIN_NAMES)


def spin_text() -> str:
    """`SPIN` as a shell exports it."""
    return " ".join(f"{name}={value}" for name, value in SPIN.items())


def environment_of_user() -> dict[str, str]:
    """The environment without what `bound_spin` has set, for programs that are to run as they do without Hasten."""
    ours = {*SPIN, _OURS} if _OURS in os.environ else set()
    return {name: value for name, value in os.environ.items() if name not in ours}
