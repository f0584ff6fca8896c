"""The memory that this process may still use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil


def available_memory() -> int:
    """Bytes: what the machine has left, or less where a container or a batch system sets a limit."""
    return min([psutil.virtual_memory().available, *_cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _cgroup_limits(cgroup: Path, root: Path) -> Iterator[int]:
    """Bytes that each Linux control group of the process leaves it. `cgroup` lists the groups; `root`: their mount."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0":
            base, files = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, files = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / name.lstrip("/")
        # A limit further up binds as well; inside a container only the top one may be visible.
        for level in (group, *group.parents):
            if level.is_relative_to(base):
                yield from _remaining(level, *files)


def _remaining(group: Path, limit_file: str, used_file: str, reclaimable: str) -> Iterator[int]:
    try:
        limit, used = (group / limit_file).read_text().strip(), int((group / used_file).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        # Cached file pages count as used, but the kernel frees them on demand.
        yield max(0, int(limit) - used + int(statistics.get(reclaimable, 0)))
