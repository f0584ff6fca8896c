"""Hosts on one machine, joined by a network of a chosen rate: namespaces, a bridge, and tc's token bucket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_PORT = 29511


@dataclass(frozen=True, slots=True)
class Host:
    namespace: str
    address: str


def missing() -> str:
    """Why hosts can't be made here; empty if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if absent:
        return f"{' and '.join(absent)} not found; install iproute2"
    try:
        with hosts(1, rate_mbit=100):
            return ""
    except subprocess.CalledProcessError as error:
        return f"this kernel refuses `{' '.join(error.cmd)}`: {error.stderr.strip()}"


@contextmanager
def hosts(count: int, *, rate_mbit: float) -> Iterator[list[Host]]:
    """`count` hosts that each send at most `rate_mbit` Mbit/s; taken down at the end. Needs root.

    Raises CalledProcessError where the kernel lacks a part.
    """
    tag = f"{os.getpid() % 100_000}"
    bridge, made = f"hsb{tag}", []
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for number in range(count):
            host = Host(f"hasten-{tag}-{number}", f"10.213.77.{number + 1}")
            _run("ip", "netns", "add", host.namespace)
            made.append(host)
            veth = f"hsv{tag}{number}"
            _run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _run("ip", "link", "set", veth, "master", bridge, "up")
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _run("ip", "-n", host.namespace, "link", "set", "eth0", "up")
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
            _run("tc", "-n", host.namespace, "qdisc", "add", "dev", "eth0", "root", "tbf",
                 "rate", f"{rate_mbit:g}mbit", "burst", "16kb", "latency", "200ms")  # fmt: skip
        yield made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def run_on(places: Sequence[Host], module: str, *args: object, timeout_s: float = 180) -> Any:
    """One rank of `python -m module ARGS` on each host; what rank 0's last line says in JSON.

    Raises RuntimeError with a rank's errors if one fails or the time is over. No process is left behind.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, host in enumerate(places):
                results = {
                    "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(places)), "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": places[0].address, "MASTER_PORT": str(_PORT),
                    "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                command = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", module, *map(str, args)]
                with Path(folder, f"{rank}.out").open("wb") as out, Path(folder, f"{rank}.err").open("wb") as err:
                    ranks.append(
                        subprocess.Popen(command, env={**os.environ, **results}, stdout=out, stderr=err, cwd=ROOT)
                    )
            end = time.monotonic() + timeout_s
            while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
                if any(rank.poll() for rank in ranks):
                    break
                time.sleep(0.05)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        failed = [number for number, rank in enumerate(ranks) if rank.returncode]
        if failed:
            errors = Path(folder, f"{failed[0]}.err").read_text(errors="replace")[-4000:]
            raise RuntimeError(f"{module}: rank {failed[0]} ended with {ranks[failed[0]].returncode}\n{errors}")
        return json.loads(Path(folder, "0.out").read_text().splitlines()[-1])
