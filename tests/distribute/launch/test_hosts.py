"""A job on two hosts, which are two network namespaces of this one, joined by a pair of virtual cables."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from tests.distribute.launch.test_command import is_alive, start, wait_for

HOST = Path(__file__).parent / "host.py"
PORT = 29611
ADDRESSES = ("10.211.77.1", "10.211.77.2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("ip") is None, reason="ip (iproute2) is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces, in which an interface `wire` leads to the other."""
    names = (f"hasten-{os.getpid()}-a", f"hasten-{os.getpid()}-b")
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            for link in ("wire", "lo"):
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


@contextmanager
def started(hosts: tuple[str, ...], out: Path, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "wire", "OMP_NUM_THREADS": "1"}
    master = f"{ADDRESSES[0]}:{PORT}"
    launchers = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, str(HOST), str(out), str(node), "2", master, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for node, name in enumerate(hosts)
    ]
    try:
        yield launchers
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGTERM)
        for launcher in launchers:
            try:
                launcher.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.communicate(timeout=10)


def ended(launchers: list[subprocess.Popen[str]], timeout_s: float) -> list[tuple[int, str]]:
    """Exit code and standard error of each, without the warnings of torch's sockets."""
    until = time.monotonic() + timeout_s
    results = [launcher.communicate(timeout=max(1.0, until - time.monotonic()))[1] for launcher in launchers]
    texts = ["\n".join(line for line in text.splitlines() if not line.startswith("[")) for text in results]
    return [(launcher.returncode, text) for launcher, text in zip(launchers, texts, strict=True)]


def test_two_hosts_train_what_one_trains(hosts: tuple[str, str], tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    with started(hosts, two, "12") as launchers:
        assert ended(launchers, 120) == [(0, ""), (0, "")]
    assert start(one, steps=12) == (0, "")
    result, wanted = (torch.load(out / "last.pt")["network"] for out in (two, one))
    assert all(torch.equal(result[name], wanted[name]) for name in wanted)
    assert {path.name for path in two.glob("logs/*/rank-*.log")} == {"rank-0.0.log", "rank-1.0.log"}


def test_a_host_that_is_cut_off_ends_the_job_on_both_sides(hosts: tuple[str, str], tmp_path: Path) -> None:
    with started(hosts, tmp_path, "100000", "slow") as launchers:
        until = time.monotonic() + 90
        while not (tmp_path / "last.pt").exists():
            assert time.monotonic() < until, [launcher.poll() for launcher in launchers]
            time.sleep(0.1)
        ip("-n", hosts[1], "link", "set", "wire", "down")
        both = ended(launchers, 120)
    for code, message in both:
        assert code != 0
        assert message.splitlines()[0].startswith("error: rank ")
        assert "start again: AGAIN" in message


def test_a_failure_on_one_host_ends_the_job_on_both(hosts: tuple[str, str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASTEN_FAULT", "error@1:3")
        with started(hosts, tmp_path, "12") as launchers:
            (other, told_other), (code, message) = ended(launchers, 120)
    assert code == 1
    assert message.splitlines()[0].startswith("error: rank 1 of 2 on ")
    assert "RuntimeError: error injected after step 3" in message
    assert other != 0
    assert "the cause is in the report of another host" in told_other


@pytest.mark.parametrize("node", [0, 1])
def test_a_launcher_that_is_killed_ends_the_job_on_both_sides(
    hosts: tuple[str, str], tmp_path: Path, node: int
) -> None:
    with started(hosts, tmp_path, "100000", "slow") as launchers:
        wait_for(lambda: (tmp_path / "last.pt").exists())
        ranks = [rank for launcher in launchers for rank in psutil.Process(launcher.pid).children()]
        launchers[node].kill()
        output = ended(launchers, 120)
        assert len(ranks) == 2
        assert not any(is_alive(rank) for rank in ranks)
    code, text = output[1 - node]
    assert code == 1
    assert "error: rank " in text
