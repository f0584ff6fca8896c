"""The monitor itself: what it writes, and that nothing which goes wrong in it reaches the run."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from hasten.observe.monitor import Host, Monitor, MonitorRecording, Sample
from hasten.observe.monitor.gpu import GpuProbe
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


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_a_sample_is_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nvml=FakeNvml(2), offset_s=20.0)
    samples = bench.run(3)
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll()
    assert list(recording.samples) == samples
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


def test_without_a_driver_it_says_so_once_and_records_the_host(tmp_path: Path) -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlInit"] = nvml_error(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    bench = Bench(tmp_path, nvml=nvml)
    bench.run(5)
    assert bench.messages == ["monitor: no GPU is recorded: NVML Shared Library Not Found"]
    assert bench.monitor.note in bench.messages[0]
    assert len(records(tmp_path / "monitor.jsonl", "note")) == 1
    samples = records(tmp_path / "monitor.jsonl", "sample")
    assert [(each.get("gpus"), each["host"]["cpu"]) for each in samples] == [([], 50)] * 5


def test_a_resumed_run_goes_on_in_the_same_files(tmp_path: Path) -> None:
    Bench(tmp_path).run(3)
    with (tmp_path / "monitor.jsonl").open("a") as file:
        file.write('{"kind": "sam')  # killed while it wrote
    Bench(tmp_path, offset_s=lambda: 2.0).run(2)
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll(is_last=True)
    assert [(s.time, s.process) for s in list(recording.samples)] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert recording.damaged == 0


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
    if trouble == "full":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        folder.mkdir()
        (folder / "monitor.jsonl").symlink_to("/dev/full")
    bench = Bench(folder)
    bench.run(3)
    assert len(bench.messages) == 1
    assert "cannot be written to" in bench.messages[0]
    if trouble == "gone":
        folder.mkdir()
        bench.run(2)
        assert len(records(folder / "monitor.jsonl", "sample")) == 2


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
    (ended,) = records(tmp_path / "monitor.jsonl", "stop")
    assert ended["cpu_seconds"] == pytest.approx(monitor.cpu_seconds, abs=1e-3)
    assert monitor.cpu_seconds > 0


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
    recording = MonitorRecording(tmp_path / "monitor.jsonl")
    recording.poll(is_last=True)
    assert recording.is_open
    assert recording.damaged == 0
    assert len(recording.samples) >= 4


def test_it_starts_without_torch() -> None:
    code = "import sys, hasten.observe.monitor, hasten.cli.view; print(sorted({'torch', 'monai'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "[]\n"
