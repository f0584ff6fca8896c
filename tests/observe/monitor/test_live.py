"""The monitor itself: what it writes, and that nothing which goes wrong in it reaches the run."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hasten.observe.monitor import COLUMNS, Host, Monitor, MonitorRecording, Sample
from hasten.observe.monitor.gpu import GpuProbe
from hasten.observe.monitor.live import CHECK_EVERY, MOST_STRETCH
from tests.observe.monitor.fake_nvml import FakeNvml, nvml_error


class Hand:
    """A clock that a test turns by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeHost:
    """A host whose readings a test changes."""

    def __init__(self, clock: Hand) -> None:
        self.clock = clock
        self.reading = Host(cpu=50.0, ram_used=1000.0, ram_total=8000.0, rss=100.0)
        self.failure: Exception | None = None

    def read(self) -> Host:
        if self.failure is not None:
            raise self.failure
        return self.reading


class Bench:
    """A monitor whose thread is a test: it turns the clock and asks for the samples."""

    def __init__(self, folder: Path, *, nvml: FakeNvml | None = None, **changes: Any) -> None:
        self.clock, self.messages = Hand(), list[str]()
        self.host, self.nvml, self.step = FakeHost(self.clock), nvml if nvml is not None else FakeNvml(), 0
        settings: dict[str, Any] = {
            "steps": lambda: self.step,
            "rank": 0,
            "world_size": 1,
            "clock": self.clock,
            "host": lambda: self.host,
            "gpu": lambda: GpuProbe(module=self.nvml, environ={}),
            "tell": self.messages.append,
        }
        self.monitor = Monitor(folder, **(settings | changes))
        self.monitor.begin()

    def run(self, seconds: int, *, steps: int = 4) -> list[Sample]:
        results = []
        for _ in range(seconds):
            results.append(self.monitor.sample())
            self.clock.now += 1
            self.step += steps
        return results


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_a_sample_goes_into_both_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nvml=FakeNvml(2), offset_s=20.0)
    samples = bench.run(3)
    result = rows(tmp_path / "monitor.csv")
    assert list(result[0]) == list(COLUMNS)
    assert [(row["time"], row["gpu"], row["gpu_util"]) for row in result] == [
        (str(20 + t), str(gpu), str(90 + gpu)) for t in range(3) for gpu in range(2)
    ]
    assert result[0]["ratio"] == "0.05"
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll()
    assert recording.history.samples() == samples
    assert recording.is_open
    (begun,) = records(tmp_path / "monitor.jsonl", "start")
    assert (begun["pid"], begun["rank"], begun["every"]) == (os.getpid(), 0, 1.0)


def test_the_time_of_a_step_is_a_mean_over_ten_at_least(tmp_path: Path) -> None:
    fast = Bench(tmp_path / "none").run(6, steps=20)
    assert [sample.step_s for sample in fast] == [None, None, 0.05, 0.05, 0.05, 0.05]
    slow = Bench(tmp_path / "none")
    results = []
    for t in range(60):
        slow.step = int(t / 1.5)  # seen as 1 s and 2 s by turns
        results += slow.run(1, steps=0)
    assert [sample.step_s for sample in results if sample.step_s is not None][-1] == pytest.approx(1.5, rel=0.1)
    assert any(sample.step_s is None for sample in results[10:])  # where no step ended


def test_what_lies_before_the_first_step_is_not_its_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert {sample.step_s for sample in bench.run(100, steps=0)} == {None}
    assert [sample.step_s for sample in bench.run(4, steps=10)] == [None, None, 0.1, 0.1]
    bench.step = 5  # gone back
    assert bench.monitor.sample().step_s is None


def test_own_work_is_kept_apart_from_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worked=lambda: 0.3 * (bench.clock.now - 1000))
    last = bench.run(5)[-1]
    assert (last.step_s, last.work_s) == (0.25, pytest.approx(0.075))


def test_without_a_driver_it_says_so_once_and_records_the_host(tmp_path: Path) -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlInit"] = nvml_error(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    bench = Bench(tmp_path, nvml=nvml)
    bench.run(5)
    assert bench.messages == ["monitor: no GPU is recorded: no NVIDIA driver was found"]
    assert bench.monitor.note in bench.messages[0]
    assert len(records(tmp_path / "monitor.jsonl", "note")) == 1
    result = rows(tmp_path / "monitor.csv")
    assert [(row["gpu_util"], row["used"], row["ratio"], row["cpu"]) for row in result] == [("", "", "", "50")] * 5


def test_a_gpu_that_is_lost_is_told_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nvml=FakeNvml(1))
    bench.run(2)
    bench.nvml.refuse_all(nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST))
    bench.run(3)
    assert len(bench.messages) == 1
    assert "GPU 0 does not answer" in bench.messages[0]
    assert [row["gpu_util"] for row in rows(tmp_path / "monitor.csv")] == ["90", "90", "", "", ""]


def test_a_resumed_run_goes_on_in_the_same_files(tmp_path: Path) -> None:
    Bench(tmp_path).run(3)
    with (tmp_path / "monitor.csv").open("a") as file:
        file.write("3,9")  # killed while it wrote
    with (tmp_path / "monitor.jsonl").open("a") as file:
        file.write('{"kind": "sam')
    Bench(tmp_path, offset_s=lambda: 2.0).run(2)
    text = (tmp_path / "monitor.csv").read_text()
    assert text.count("gpu_util") == 1
    assert [row["time"] for row in rows(tmp_path / "monitor.csv")] == ["0", "1", "2", "2", "3"]
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll(is_last=True)
    assert [(s.time, s.process) for s in recording.history.samples()] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert recording.damaged == 0


def test_a_file_of_another_version_keeps_its_columns(tmp_path: Path) -> None:
    (tmp_path / "monitor.csv").write_text("time,gpu_util,used,total,ratio,cpu,moon\n0,1,2,3,4,5,full\n")
    Bench(tmp_path).run(1)
    assert rows(tmp_path / "monitor.csv")[1]["cpu"] == "50"
    assert (tmp_path / "monitor.csv").read_text().splitlines()[-1] == "0,90,4096,81920,0.05,50,"


def test_ranks_write_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Bench(tmp_path).run(1)
    Bench(tmp_path, rank=1, world_size=2).run(1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    Bench(tmp_path, rank=None, world_size=None).run(1)
    names = {f"monitor{rank}.{kind}" for rank in ("", "-rank1", "-rank3") for kind in ("csv", "jsonl")}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_an_alert_is_told_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.host.reading = dataclasses.replace(bench.host.reading, ram_used=7900.0)
    bench.run(20)
    assert [alert.kind for alert in bench.monitor.check()] == ["ram_full"]
    bench.run(20)
    assert bench.monitor.check() == []
    assert len(bench.messages) == 1


@pytest.mark.parametrize("trouble", ["full", "gone"])
def test_a_disk_that_takes_nothing_is_told_once_and_taken_up_again(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "run"
    files = [folder / "monitor.csv", folder / "monitor.jsonl"]
    if trouble == "full":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        folder.mkdir()
        for file in files:
            file.symlink_to("/dev/full")
    bench = Bench(folder)
    bench.run(3)
    assert len(bench.messages) == 1
    assert "cannot be written to" in bench.messages[0]
    if trouble == "gone":
        folder.mkdir()
        bench.run(2)
        assert len(rows(files[0])) == 2


def test_samples_are_rarer_where_they_cost_too_much(tmp_path: Path) -> None:
    monitor = Bench(tmp_path, every=2.0).monitor
    assert monitor.period() == 2.0
    monitor._costs.extend([0.0004] * 9)
    assert monitor.period() == 2.0
    monitor._costs.extend([0.006] * 9)
    assert monitor.period() == pytest.approx(6.0)
    monitor._costs.extend([1.0] * 9)
    assert monitor.period() == 2.0 * MOST_STRETCH
    monitor._costs.extend([0.0004] * 8)  # one that took long is no reason
    assert monitor.period() == 2.0


# The thread


class Signalling(FakeHost):
    """Lets a test wait until the thread has taken samples, rather than for a time."""

    def __init__(self, wanted: int) -> None:
        super().__init__(Hand())
        self.wanted, self.count, self.enough = wanted, 0, threading.Event()

    def read(self) -> Host:
        self.count += 1
        if self.count >= self.wanted:
            self.enough.set()
        return super().read()


def no_gpu() -> GpuProbe:
    return GpuProbe(())


def test_the_thread_samples_until_it_is_stopped(tmp_path: Path) -> None:
    host = Signalling(4)
    monitor = Monitor(tmp_path, every=0.005, host=lambda: host, gpu=no_gpu, rank=0, world_size=1)
    with monitor:
        assert host.enough.wait(30)
    monitor.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "hasten-monitor"]
    count = len(records(tmp_path / "monitor.jsonl", "sample"))
    assert count == monitor.num_samples >= 4
    assert count == len(rows(tmp_path / "monitor.csv"))
    (ended,) = records(tmp_path / "monitor.jsonl", "stop")
    assert ended["cpu_seconds"] == pytest.approx(monitor.cpu_seconds, abs=1e-3)
    assert monitor.cpu_seconds > 0


def test_a_sample_that_fails_is_told_once_and_the_thread_goes_on(tmp_path: Path) -> None:
    host, message = Signalling(5), list[str]()
    host.failure = RuntimeError("boom")
    with Monitor(tmp_path, every=0.005, host=lambda: host, gpu=no_gpu, tell=message.append):
        assert host.enough.wait(30)
    assert message == ["monitor: a sample failed (RuntimeError: boom); the run continues"]


@pytest.mark.parametrize("broken", ["steps", "host", "gpu", "tell"])
def test_nothing_that_breaks_reaches_the_run(tmp_path: Path, broken: str) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError(broken)

    host = Signalling(1)
    host.failure = RuntimeError("told") if broken == "tell" else None
    settings: dict[str, Any] = {"host": lambda: host, "gpu": no_gpu, "tell": lambda text: None}
    with Monitor(tmp_path, every=0.005, **(settings | {broken: fail})):
        pass
    # The thread came to its end by itself.
    assert len(records(tmp_path / "monitor.jsonl", "stop")) == 1


def test_alerts_are_looked_for_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    looks: list[float] = []

    class Looking(Monitor):
        def check(self) -> list[Any]:
            looks.append(self._time())
            return []

    clock = Hand()

    class Turning(Signalling):
        def read(self) -> Host:
            clock.now += 1
            return super().read()

    host = Turning(100)
    with Looking(tmp_path, every=1e-4, host=lambda: host, gpu=no_gpu, clock=clock):
        assert host.enough.wait(30)
    gaps = [later - earlier for earlier, later in pairwise(looks[:-1])]
    assert len(looks) >= 3
    assert all(CHECK_EVERY <= gap <= CHECK_EVERY + 2 for gap in gaps)


def test_stop_before_start_and_twice_is_nothing(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.stop()
    monitor.stop()
    assert list(tmp_path.iterdir()) == []


def test_the_real_host_is_read(tmp_path: Path) -> None:
    enough = threading.Event()

    def steps() -> int:
        if monitor.num_samples >= 3:
            enough.set()
        return monitor.num_samples

    monitor = Monitor(tmp_path, every=0.05, steps=steps, gpu=no_gpu)
    with monitor:
        assert enough.wait(60)
    last = records(tmp_path / "monitor.jsonl", "sample")[-2]["host"]
    assert {"cpu", "own_cores", "ram_used", "ram_total", "rss"} <= set(last)
    assert last["rss"] < last["ram_total"]


KILLED = """
import sys, time
from pathlib import Path
from hasten.observe.monitor import Monitor
monitor = Monitor(Path(sys.argv[1]), every=0.01, gpus=())
monitor.start()
while monitor.num_samples < 5:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def wait_for_line(process: subprocess.Popen[str], read: Callable[[], str]) -> str:
    line = read()
    assert process.poll() is None, process.stderr.read() if process.stderr else ""
    return line


def test_a_process_that_is_killed_leaves_whole_lines(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert wait_for_line(process, process.stdout.readline) == "ready\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=600)
    assert (tmp_path / "monitor.csv").read_bytes().endswith(b"\n")
    assert len(rows(tmp_path / "monitor.csv")) >= 5
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll(is_last=True)
    assert recording.is_open
    assert recording.damaged == 0
    assert len(recording.history) >= 4  # killed between the two files, it lacks the last sample


def test_it_starts_without_torch() -> None:
    code = "import sys, hasten.observe.monitor, hasten.cli.watch; print(sorted({'torch', 'monai'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "[]\n"
