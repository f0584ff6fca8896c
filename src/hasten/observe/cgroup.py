"""The limits of memory and processor time that a container or batch job sets this process: Linux control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUP_FILE, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The list of the control groups of this process, and their mount point."""
_MEMORY = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of the limit and the use, and the line of the page cache in memory.stat, by whether it is version 2."""
_REFRESH = 10
"""Number of readings per update of the page cache's share, which the kernel sums up on every read."""


class MemoryLimit:
    """One control group with a limit."""

    def __init__(self, folder: Path, num_bytes: int, used: str, cache_line: str) -> None:
        self.num_bytes = num_bytes
        self._folder, self._used, self._cache_line = folder, used, cache_line
        self._cached, self._readings = 0, 0

    def used(self) -> int | None:
        """Bytes in use that cannot be given up on demand, as the page cache can; None if that cannot be read."""
        try:
            used = int((self._folder / self._used).read_text())
            if self._readings % _REFRESH == 0:
                self._cached = self._page_cache()
        except (OSError, ValueError):
            return None
        self._readings += 1
        return max(0, used - self._cached)

    def _page_cache(self) -> int:
        lines = (self._folder / "memory.stat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{self._cache_line} ")), 0)


def memory_limits(cgroup_file: Path = _CGROUP_FILE, root: Path = _ROOT) -> Iterator[MemoryLimit]:
    """Every limit above this process, the innermost group first."""
    for level, is_v2 in _groups("memory", cgroup_file, root):
        limit, used, cache_line = _MEMORY[is_v2]
        try:
            num_bytes = int((level / limit).read_text())
        except (OSError, ValueError):  # "max" is no number: no limit
            continue
        yield MemoryLimit(level, num_bytes, used, cache_line)


def cpu_quota(cgroup_file: Path = _CGROUP_FILE, root: Path = _ROOT) -> float | None:
    """Cores' worth of time that the control groups allow; None for no limit."""
    limits = [_quota_of(level, is_v2) for level, is_v2 in _groups("cpu", cgroup_file, root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_of(group: Path, is_v2: bool) -> float | None:
    files = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        allowed, period = " ".join((group / name).read_text() for name in files).split()
        return None if allowed in ("max", "-1") else float(allowed) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _groups(controller: str, cgroup_file: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Folders of the process's groups and of those above them, which bind as well, and whether they are version 2.

    Inside a container only the top one may be visible.
    """
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = (*line.split(":", 2), "", "")[:3]
        if number != "0" and controller not in controllers.split(","):
            continue
        base = root if number == "0" else root / controller
        group = base / name.lstrip("/")
        yield from ((level, number == "0") for level in (group, *group.parents) if level.is_relative_to(base))
