"""The cores and memory that this process may use (affinity, Linux control groups), and how OpenMP's threads wait.

torch's operators end with a barrier of OpenMP's threads. GNU's library (torch's wheels for Linux) lets each thread that
waits there spin for some milliseconds before it sleeps, as if the cores were its own. Where another program, or a
container's quota, keeps one thread from running, the others spin that long at each of some thousand barriers of a step.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from hasten.system import text_of

SPIN = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "1"}
"""How long a thread spins: iterations of GNU's library (default 300,000), milliseconds of Intel's and LLVM's (200)."""
SPIN_NAMES = (*SPIN, "OMP_WAIT_POLICY", "KMP_LIBRARY")
MPS_FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
"""Variable by which torch runs on the CPU what it lacks on Apple's GPU, if it is 1."""
_OURS, _MPS_OURS = "HASTEN_SPIN", "HASTEN_MPS_FALLBACK"
"""Say that Hasten has set `SPIN`, or `MPS_FALLBACK`, to processes that inherit them."""


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


def allow_mps_fallback(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set `MPS_FALLBACK` on a Mac, unless the user has, or torch, which reads it once, is there already."""
    if sys.platform == "darwin" and "torch" not in sys.modules and MPS_FALLBACK not in environ:
        environ.update({MPS_FALLBACK: "1", _MPS_OURS: "1"})


def spin_is_chosen(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable says how OpenMP's threads wait, set by `bound_spin` or by the user."""
    return any(name in environ for name in SPIN_NAMES)


def spin_text() -> str:
    """`SPIN` as a shell exports it."""
    return " ".join(f"{name}={value}" for name, value in SPIN.items())


def environment_of_user() -> dict[str, str]:
    """The environment without what importing Hasten sets, for programs that are to run as they do without it."""
    ours = {*SPIN, _OURS} if _OURS in os.environ else set()
    ours |= {MPS_FALLBACK, _MPS_OURS} if _MPS_OURS in os.environ else set()
    return {name: value for name, value in os.environ.items() if name not in ours}


_CGROUP_FILE, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The list of the control groups of this process, and their mount point."""
_MEMORY = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of the limit and the use, and the line of the page cache in memory.stat, by whether it is version 2."""


def memory_limits(cgroup_file: Path = _CGROUP_FILE, root: Path = _ROOT) -> Iterator[tuple[int, int]]:
    """Bytes of every limit above this process, the innermost group first, and how many of them are in use.

    Without those that can be given up on demand, as the page cache can. A group that can't be read is left out.
    """
    for level, is_v2 in _groups("memory", cgroup_file, root):
        limit, used, cache_line = _MEMORY[is_v2]
        try:
            num_bytes, in_use = (int((level / name).read_text(encoding="utf-8")) for name in (limit, used))
            lines = (level / "memory.stat").read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):  # "max" is no number: no limit
            continue
        cached = (int(line.split()[1]) for line in lines if line.startswith(f"{cache_line} "))
        yield num_bytes, max(0, in_use - next(cached, 0))


def cpu_quota(cgroup_file: Path = _CGROUP_FILE, root: Path = _ROOT) -> float | None:
    """Cores' worth of time that the control groups allow; None for no limit."""
    limits = [_quota_of(level, is_v2) for level, is_v2 in _groups("cpu", cgroup_file, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_of(group: Path, is_v2: bool) -> float | None:
    files = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        allowed, period = " ".join((group / name).read_text(encoding="utf-8") for name in files).split()
        return None if allowed in ("max", "-1") else float(allowed) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _groups(controller: str, cgroup_file: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of the process's groups and of those above them, which bind as well, and whether they are version 2.

    Inside a container only the top one may be visible.
    """
    for line in text_of(cgroup_file).splitlines():
        number, controllers, name = (*line.split(":", 2), "", "")[:3]
        if number != "0" and controller not in controllers.split(","):
            continue
        base = root if number == "0" else root / controller
        group = base / name.lstrip("/")
        yield from ((level, number == "0") for level in (group, *group.parents) if level.is_relative_to(base))


def available_memory() -> int:
    """Bytes: what the machine has left, or less where a container or a batch system sets a limit."""
    import psutil  # not at the top: this module is imported before torch by every command

    remaining = [max(0, most - used) for most, used in memory_limits()]
    return min([psutil.virtual_memory().available, *remaining])
