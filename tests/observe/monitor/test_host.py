"""What the host says: rates, and the memory of a container."""

from __future__ import annotations

from pathlib import Path

from hasten.observe.cores import MemoryLimit, memory_limits
from hasten.observe.monitor.host import Counters, HostProbe

MIB = 1024**2


def find_limit(own: Path, root: Path) -> MemoryLimit | None:
    return min(memory_limits(own, root), key=lambda limit: limit.num_bytes, default=None)


class Hand:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_differences_over_time() -> None:
    clock = Hand()
    result = Counters(cpu=(10, 100), memory=(1000 * MIB, 400 * MIB), rss=50 * MIB, disk=(0, 0), net=(500, 500))
    readings = [result]
    probe = HostProbe(counters=lambda: readings[-1], clock=clock)
    first = probe.read()
    assert (first.cpu, first.disk_read, first.net_in, first.own_cores) == (None, None, None, None)
    assert (first.ram_used, first.ram_total, first.rss) == (600.0, 1000.0, 50.0)
    clock.now += 2
    readings.append(Counters(cpu=(40, 200), memory=None, rss=None, disk=(2000, 4000), net=(600, 100)))
    second = probe.read()
    assert (second.cpu, second.disk_read, second.disk_write) == (30.0, 1000.0, 2000.0)
    assert (second.net_in, second.net_out) == (50.0, 0.0)  # a wire that went away takes its count along
    assert (second.ram_used, second.rss) == (None, None)
    clock.now += 0.001
    assert probe.read().disk_read is None  # too soon for a rate, and the next one counts from before
    clock.now += 1.999
    readings.append(Counters(cpu=(140, 300), disk=(4000, 4000)))
    assert probe.read().disk_read == 1000.0


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
        "memory.limit_in_bytes": "4096", "memory.usage_in_bytes": "1000", "memory.stat": "total_inactive_file 100\n"
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (tmp_path / "own").write_text("nonsense\n5:memory:/job\n3:cpu,cpuacct:/job\n")
    limit = find_limit(tmp_path / "own", tmp_path / "cgroup")
    assert limit is not None
    assert (limit.num_bytes, limit.used()) == (4096, 900)
    assert find_limit(tmp_path / "missing", tmp_path) is None
