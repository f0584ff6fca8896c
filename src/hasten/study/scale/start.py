"""Starts one training of a study as a separate job, and ends it if the study is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 60.0
"""Seconds that a training gets to save a checkpoint after it is interrupted."""
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def command_of(settings: Path, out: Path, world: int) -> list[str]:
    """The command line that trains by `settings` in `out` with `world` processes on this machine."""
    launch = ["launch", "--nproc", str(world), str(settings), "--out", str(out), "--quiet"]
    return [sys.executable, "-m", "hasten", *launch]


def start(command: Sequence[str], *, threads: int, log: Path) -> int:
    """Run the command to its end with its output in the file `log`, and return its exit code.

    threads: of each process. When the study is interrupted, or asked to end, so is the command, which gets time to
    save, before KeyboardInterrupt is raised.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _RANKS}
    environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with log.open("wb") as file, _sigterm_interrupts():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, so that no training is left behind without its study."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_error(log: Path) -> str:
    """The line of a log that best explains why it ended: the last one that begins with `error`, else the last."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1]
