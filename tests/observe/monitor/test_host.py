"""What the host says: rates, and the memory of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.observe.cores import MemoryLimit, memory_limits
from hasten.observe.monitor import host


def find_limit(own: Path, root: Path) -> MemoryLimit | None:
    return min(memory_limits(own, root), key=lambda limit: limit.num_bytes, default=None)


def test_rates_are_differences_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, totals = [10.0], [{"disk_read": 0, "disk_write": 0, "net_in": 500}]
    monkeypatch.setattr(host.time, "monotonic", lambda: now[-1])
    monkeypatch.setattr(host, "_totals", lambda: totals[-1])
    probe = host.HostProbe()
    first = probe.read()
    assert (first.cpu, first.disk_read, first.net_in, first.own_cores) == (None, None, None, None)
    assert first.ram_used is not None
    assert first.ram_total is not None
    assert first.rss is not None
    assert 0 < first.rss < first.ram_used < first.ram_total
    now.append(12.0)
    totals.append({"disk_read": 2000, "disk_write": 4000, "net_in": 100})
    second = probe.read()
    assert (second.disk_read, second.disk_write) == (1000.0, 2000.0)
    assert second.net_in == 0.0  # a wire that went away takes its count along
    assert second.cpu is not None


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
    limit = find_limit(tmp_path / "own", root)
    assert limit is not None
    assert (limit.num_bytes, limit.used()) == (1000, 600)
    (root / "job" / "memory.current").write_text("950\n")
    assert limit.used() == 650
    (root / "job" / "memory.current").unlink()
    assert limit.used() is None


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
    limit = find_limit(tmp_path / "own", tmp_path / "cgroup")
    assert limit is not None
    assert (limit.num_bytes, limit.used()) == (4096, 900)
    assert find_limit(tmp_path / "missing", tmp_path) is None
