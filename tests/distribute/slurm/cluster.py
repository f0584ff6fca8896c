"""A real SLURM of two nodes of one core each on this machine, started for a test, with all it keeps in its own folder.

A node is a slurmd of its own, and its name an address of loopback, as jobs meet at the name of their first node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
_START_S = 60.0
NODES = ("127.0.0.1", "127.0.0.2")


def missing() -> str | None:
    """Why no SLURM can be started here."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "only root can start a SLURM"
    return None


class Slurm:
    """The running cluster. Partition `low` is the default; a job in `high` takes the place of one in `low`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env

    def run(self, *command: str) -> str:
        """What a SLURM command says; it must succeed."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def state(self, job: str) -> str:
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").lower()

    def wait(self, reached: Callable[[], bool], seconds: float = 500.0) -> None:
        """Until `reached`; fails after `seconds`, far more than it takes."""
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end, f"not reached in {seconds} s\n{self.run('squeue', '--states=all')}"
            time.sleep(0.2)

    def wait_for_end(self, job: str) -> str:
        """The state that the job ends in."""
        self.wait(lambda: self.state(job) in ("completed", "failed", "cancelled", "timeout", "node_fail"))
        return self.state(job)


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """A cluster of `NODES`, ended with all its jobs at the end of the block."""
    # Not pytest's folder: the path of a socket may have 107 letters.
    folder = Path(tempfile.mkdtemp(prefix="hasten-slurm-"))
    env = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    slurm = Slurm(env)
    try:
        _write_config(folder)
        with ExitStack() as stack:
            files = {name: folder / f"munge.{name}" for name in ("key", "socket", "pid", "log", "seed")}
            files["key"].write_bytes(os.urandom(128))
            files["key"].chmod(0o600)
            munge = ["--foreground", "--force"]
            for option, name in (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"),
                                 ("seed-file", "seed")):  # fmt: skip
                munge += [f"--{option}", str(files[name])]
            stack.enter_context(_running(folder, env, "munged", *munge))
            slurm.wait(files["socket"].exists, _START_S)
            stack.enter_context(_running(folder, env, "slurmctld", "-D", "-f", env["SLURM_CONF"]))
            for node in NODES:
                stack.enter_context(_running(folder, env, "slurmd", "-D", "-N", node, "-f", env["SLURM_CONF"]))
            slurm.wait(lambda: _is_idle(env), _START_S)
            try:
                yield slurm
            finally:
                end = ["scancel", "--user=root", "--signal=KILL", "--full"]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(end, env=env, timeout=30, check=False, capture_output=True)
    finally:
        _end_jobs(env["SLURM_CONF"])
        shutil.rmtree(folder, ignore_errors=True)


def _is_idle(env: dict[str, str]) -> bool:
    ask = ["sinfo", "--noheader", "--partition=low", "--format=%T %D"]
    done = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() == f"idle {len(NODES)}"


@contextmanager
def _running(folder: Path, env: dict[str, str], name: str, *arguments: str) -> Iterator[None]:
    program = shutil.which(name, path=_PATH)
    assert program is not None
    with (folder / f"{name}.out").open("ab") as log:
        process = subprocess.Popen([program, *arguments], env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_jobs(config: str) -> None:
    """What a job had started outlives the daemons. It is known by its cluster."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == config:
                process.kill()


def _write_config(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    ctld, *daemons = _free_ports(1 + len(NODES))
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr={node} Port={port} CPUs=1 State=UNKNOWN"
        for node, port in zip(NODES, daemons, strict=True)
    )
    (folder / "slurm.conf").write_text(f"""
ClusterName=hasten
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld}
AuthType=auth/munge
# A job that was queued again waits for as long as credentials last; below 5 counts as 120.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobRequeue=1
ReturnToService=2
KillWait=60
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=low Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=300
PartitionName=high Nodes={",".join(NODES)} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
""")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
