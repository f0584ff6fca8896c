"""The monitor itself: what it writes, and that nothing which goes wrong in it reaches the run."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hasten.observe.monitor import Host, Monitor, live, read_recording
from hasten.observe.monitor.live import Pace
from hasten.observe.monitor.probes import GpuProbe


class FakeHost:
    """A host whose readings a test changes; it lets the test wait until so many were taken."""

    def __init__(self) -> None:
        self.reading = Host(cpu=50.0, ram_used=1000.0, ram_total=8000.0, rss=100.0)
        self.failure: Exception | None = None
        self.wanted, self.count, self.enough = 4, 0, threading.Event()

    def read(self) -> Host:
        self.count += 1
        if self.count >= self.wanted:
            self.enough.set()
        if self.failure is not None:
            raise self.failure
        return self.reading


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    fake = FakeHost()
    monkeypatch.setattr(live, "HostProbe", lambda: fake)
    return fake


def monitor(folder: Path, messages: list[str] | None = None, **changes: Any) -> Monitor:
    tell = (lambda text: None) if messages is None else messages.append
    return Monitor(folder, **{"every": 0.005, "rank": 0, "world_size": 1, "gpus": (), "tell": tell, **changes})


def run(folder: Path, host: FakeHost, messages: list[str] | None = None, **changes: Any) -> Monitor:
    """A monitor that took some samples."""
    host.wanted, host.enough = host.count + 4, threading.Event()
    with monitor(folder, messages, **changes) as running:
        assert host.enough.wait(60)
    return running


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == kind]


def test_the_thread_samples_until_it_is_stopped(tmp_path: Path, host: FakeHost) -> None:
    sent: list[dict[str, Any]] = []
    steps = itertools.count(step=20)
    done = run(tmp_path, host, steps=lambda: next(steps), age_s=lambda: 20.0, send=sent.append)
    done.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "hasten-monitor"]
    recording = read_recording(tmp_path / "monitor.jsonl")
    assert [sample.step for sample in recording.samples] == list(range(0, 20 * done.num_samples, 20))
    assert all(sample.host == host.reading for sample in recording.samples)
    assert recording.samples[0].time >= 20
    assert json.loads(json.dumps(sent)) == records(tmp_path / "monitor.jsonl", "sample")
    (begun,) = records(tmp_path / "monitor.jsonl", "start")
    assert (begun["pid"], begun["rank"], begun["every"]) == (os.getpid(), 0, 0.005)
    (ended,) = records(tmp_path / "monitor.jsonl", "stop")
    assert ended["cpu_seconds"] == pytest.approx(done.cpu_seconds, abs=1e-3)
    assert not recording.is_open


def test_the_time_of_a_step_is_a_mean_over_ten_at_least() -> None:
    fast = Pace()
    assert [fast.of(20 * t, t) for t in range(5)] == [None, None, 0.05, 0.05, 0.05]
    slow = Pace()
    results = [slow.of(int(t / 1.5), t) for t in range(60)]  # seen as 1 s and 2 s by turns
    assert [each for each in results if each is not None][-1] == pytest.approx(1.5, rel=0.1)
    assert None in results[10:]  # where no step ended
    waiting = Pace()
    assert [waiting.of(max(0, t - 99) * 10, t) for t in range(104)] == [None] * 101 + [0.1] * 3
    assert waiting.of(5, 105) is None  # gone back


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path, host: FakeHost) -> None:
    run(tmp_path, host)
    with (tmp_path / "monitor.jsonl").open("a") as file:
        file.write('{"kind": "sam')  # killed while it wrote
    run(tmp_path, host, age_s=lambda: 1000.0)
    recording = read_recording(tmp_path / "monitor.jsonl")
    assert {sample.process for sample in recording.samples} == {0, 1}
    assert all((sample.time >= 1000) == (sample.process == 1) for sample in recording.samples)
    assert recording.damaged == 0


def test_what_is_to_know_is_told_once(tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(gpus: object) -> GpuProbe:
        broken = GpuProbe(())
        broken.note = "no GPU is recorded: no library"
        return broken

    monkeypatch.setattr(live, "GpuProbe", probe)
    monkeypatch.setattr(live, "CHECK_EVERY", 0.0)
    host.reading = Host(ram_used=7900.0, ram_total=8000.0)
    messages: list[str] = []
    run(tmp_path, host, messages)
    assert len(messages) == 2
    assert messages[0] == "monitor: no GPU is recorded: no library"
    assert "memory was 99 % full" in messages[1]
    assert len(records(tmp_path / "monitor.jsonl", "note")) == 1


def test_a_folder_that_takes_nothing_is_told_once(tmp_path: Path, host: FakeHost) -> None:
    messages: list[str] = []
    run(tmp_path / "gone", host, messages)
    (message,) = messages
    assert "cannot be written to" in message


@pytest.mark.parametrize("broken", ["steps", "host", "send", "tell"])
def test_nothing_that_breaks_reaches_the_run(tmp_path: Path, host: FakeHost, broken: str) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError(broken)

    host.failure = RuntimeError("told") if broken in ("tell", "host") else None
    with monitor(tmp_path, **({} if broken == "host" else {broken: fail})):
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


def test_a_process_that_is_killed_leaves_whole_lines(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=600)
    recording = read_recording(tmp_path / "monitor.jsonl")
    assert recording.is_open
    assert recording.damaged == 0
    assert len(recording.samples) >= 4


def test_it_starts_without_torch() -> None:
    code = "import sys, hasten.observe.monitor, hasten.cli.view; print(sorted({'torch', 'monai'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "[]\n"
