"""What the host says: rates, the memory of a container, and Linux' own files against psutil."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hasten.observe.cgroup import MemoryLimit, memory_limits
from hasten.observe.monitor.host import Counters, HostProbe, ProcCounters, portable_counters

MIB = 1024**2
STAT = "cpu  100 0 50 800 50 0 0 0 30 0\ncpu0 1 2 3\n"
DISKS = """\
   7       0 loop0 9 9 900 9 9 9 900 9 9 9 9
 252       0 vda 10 0 2000 5 20 0 4000 7 0 3 3 0 0 0 0 0 0
 252       1 vda1 10 0 2000 5 20 0 4000 7 0 3 3 0 0 0 0 0 0
"""
WIRES = """\
Inter-|   Receive                          |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0: 300 1 0 0 0 0 0 0 400 1 0 0 0 0 0 0
docker0: 77 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> ProcCounters:
    for name, text in {
        "stat": STAT,
        "meminfo": "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   600 kB\n",
        "self/statm": "500 25 3 1 0 9 0\n",
        "diskstats": DISKS,
        "net/dev": WIRES,
    }.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("loop0", "vda"):
        (tmp_path / "block" / name).mkdir(parents=True)
    return ProcCounters(tmp_path / "proc", tmp_path / "block")


def test_linux_files_are_read(proc: ProcCounters) -> None:
    assert proc() == Counters(
        cpu=(150.0, 1000.0),
        memory=(1000 * 1024, 600 * 1024),
        rss=25 * os.sysconf("SC_PAGE_SIZE"),
        disk=(2000 * 512, 4000 * 512),
        net=(300, 400),
    )


def test_files_that_are_missing_are_not_known(tmp_path: Path) -> None:
    assert ProcCounters(tmp_path, tmp_path / "none")() == Counters()
    (tmp_path / "stat").write_text("")
    (tmp_path / "meminfo").write_text("MemTotal:  5 kB\n")
    assert ProcCounters(tmp_path, tmp_path / "none")() == Counters()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' files")
def test_both_ways_agree_here() -> None:
    direct, portable = ProcCounters()(), portable_counters()
    assert direct.memory is not None
    assert portable.memory is not None
    assert direct.memory[0] == portable.memory[0]
    for one, other in ((direct.net, portable.net), (direct.disk, portable.disk)):
        if one is not None and other is not None:
            assert other[0] == pytest.approx(one[0], rel=0.05, abs=MIB)
            assert other[1] == pytest.approx(one[1], rel=0.05, abs=MIB)
    assert direct.rss == pytest.approx(portable.rss, rel=0.2)
    assert direct.cpu is not None
    assert portable.cpu is not None
    # psutil counts in seconds, the file in ticks.
    assert direct.cpu[1] / os.sysconf("SC_CLK_TCK") == pytest.approx(portable.cpu[1], rel=0.01)


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
