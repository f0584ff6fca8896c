"""The memory limit of the container or batch job that this process runs in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_REFRESH = 10
"""Number of readings per update of the page cache's share, which the kernel sums up on every read."""


class MemoryLimit:
    """One Linux control group with a limit."""

    def __init__(self, folder: Path, num_bytes: int, used: str, cache_line: str) -> None:
        self.num_bytes = num_bytes
        self._folder, self._used, self._cache_line = folder, used, cache_line
        self._cached, self._readings = 0, 0

    def used(self) -> int | None:
        """Bytes in use that cannot be given up on demand; None if that cannot be read."""
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


def find_limit(
    cgroup_file: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> MemoryLimit | None:
    """The tightest limit above this process; None if there is none.

    cgroup_file: lists the control groups of the process. root: their mount point.
    """
    limits = list(_limits(cgroup_file, root))
    return min(limits, key=lambda limit: limit.num_bytes, default=None)


def _limits(cgroup_file: Path, root: Path) -> Iterator[MemoryLimit]:
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            base, limit, used, cache = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = base / name.lstrip("/")
        for level in (group, *group.parents):
            if not level.is_relative_to(base):
                break
            try:
                num_bytes = int((level / limit).read_text())
            except (OSError, ValueError):  # "max" is no number: no limit
                continue
            yield MemoryLimit(level, num_bytes, used, cache)
