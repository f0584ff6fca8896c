"""A limit of a container counts as the memory there is."""

from __future__ import annotations

from pathlib import Path

import psutil

from hasten.cache.memory import available_memory
from hasten.observe.cores import memory_limits


def group(folder: Path, prefix: tuple[str, str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / prefix[0]).write_text(f"{limit}\n")
    (folder / prefix[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{prefix[2]} {cached}\n")


def remaining(own: Path, root: Path) -> list[int]:
    return [limit.num_bytes - (limit.used() or 0) for limit in memory_limits(own, root)]


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_version_2_takes_every_level(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "own"
    own.write_text("0::/slurm/job/step\n")
    group(root / "slurm" / "job" / "step", V2, "max", 10, 0)
    group(root / "slurm" / "job", V2, "1000", 400, 100)
    group(root / "slurm", V2, "5000", 4900, 0)
    assert remaining(own, root) == [700, 100]


def test_inside_a_container_the_group_of_the_host_is_not_there(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "own"
    own.write_text("0::/../../docker/abc\n")
    group(root, V2, "1000", 1100, 0)
    assert remaining(own, root) == [-100]


def test_version_1(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/job\n1:name=systemd:/y\n")
    group(root / "memory" / "job", V1, "1000", 300, 200)
    assert remaining(own, root) == [900]


def test_without_groups_the_machine_counts(tmp_path: Path) -> None:
    assert remaining(tmp_path / "none", tmp_path) == []
    (tmp_path / "own").write_text("0::/\n")
    assert remaining(tmp_path / "own", tmp_path / "nothing") == []
    assert 0 <= available_memory() <= psutil.virtual_memory().total
