"""What the host says: rates, and the memory of a container."""

from __future__ import annotations

from pathlib import Path

from hasten.observe.cores import memory_limits
from hasten.observe.monitor.probes import HostProbe


def find_limit(own: Path, root: Path) -> tuple[int, int] | None:
    return min(memory_limits(own, root), default=None)


def test_the_host_is_read_and_has_rates_from_the_second_time_on() -> None:
    probe = HostProbe()
    first, second = probe.read(), probe.read()
    assert (first.cpu, first.own_cores) == (None, None)
    assert second.cpu is not None
    assert first.ram_used is not None
    assert first.ram_total is not None
    assert first.rss is not None
    assert 0 < first.rss < first.ram_used < first.ram_total


def group(folder: Path, *, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")


def test_the_tightest_limit_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "job" / "step", limit="max", used=10, cached=0)
    group(root / "job", limit="1000", used=900, cached=300)
    group(root, limit="5000", used=2000, cached=0)
    (tmp_path / "own").write_text("0::/job/step\n")
    assert find_limit(tmp_path / "own", root) == (1000, 600)
    (root / "job" / "memory.current").write_text("950\n")
    assert find_limit(tmp_path / "own", root) == (1000, 650)
    (root / "job" / "memory.current").unlink()
    assert find_limit(tmp_path / "own", root) == (5000, 2000), "a group that can't be read is left out"


def test_limits_of_the_first_kind_and_none(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup" / "memory" / "job"
    folder.mkdir(parents=True)
    for name, text in {
        "memory.limit_in_bytes": "4096",
        "memory.usage_in_bytes": "1000",
        "memory.stat": "total_inactive_file 100\n",
    }.items():
        (folder / name).write_text(text)
    (tmp_path / "own").write_text("nonsense\n5:memory:/job\n3:cpu,cpuacct:/job\n")
    assert find_limit(tmp_path / "own", tmp_path / "cgroup") == (4096, 900)
    assert find_limit(tmp_path / "missing", tmp_path) is None
