"""Python programs in processes of their own that start at once: forked from a server that has done the slow imports.

They can't test what depends on the start of Python itself: import times, `PYTHONHASHSEED`, numbers of threads that
libraries read from the environment when they are loaded.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self, TextIO

ROOT = Path(__file__).parents[1]
IMPORTED = ["torch._dynamo", "torch.distributed.fsdp", "monai.networks.nets", "monai.transforms", "hasten.training.run"]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


class Program:
    """Like `subprocess.Popen([sys.executable, *command], text=True)` with three pipes, from the repository's root."""

    def __init__(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        """command: `-c CODE ARGUMENT...` or `-m MODULE ARGUMENT...`."""
        self.args = command
        self._readers: list[threading.Thread] = []
        self._texts = ["", ""]
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = (_context.Pipe(False) for _ in range(3))
        environment = dict(os.environ if env is None else env)
        passed = (read_in, write_out, write_err)
        self._process = _context.Process(target=_run, args=(command, environment, passed))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdin, self.stdout, self.stderr = _file(write_in, "w"), _file(read_out, "r"), _file(read_err, "r")
        for connection in passed:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def collect(self) -> None:
        """Read from now on what it writes, so that it never waits for a reader; `communicate` returns it."""

        def read(number: int, file: TextIO) -> None:
            self._texts[number] = file.read()

        files = enumerate((self.stdout, self.stderr))
        self._readers = [threading.Thread(target=read, args=each, daemon=True) for each in files]
        for reader in self._readers:
            reader.start()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close the input; all of the output that was not read yet, and of the errors."""
        if not self._readers:  # A call that timed out left them reading.
            self.stdin.close()
            self.collect()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._texts[0], self._texts[1]


def _file(connection: Connection, mode: str) -> TextIO:
    file = os.fdopen(os.dup(connection.fileno()), mode)
    connection.close()
    return file  # type: ignore[return-value]


def _run(command: tuple[str, ...], environment: dict[str, str], standard: tuple[Connection, ...]) -> None:
    for number, connection in enumerate(standard):
        os.dup2(connection.fileno(), number)
        connection.close()
    # Python's own files were opened for what the server had there.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    switch, what, *arguments = command
    try:
        if switch == "-m":
            sys.argv = [what, *arguments]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *arguments]
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(what, sys.modules["__main__"].__dict__)
    finally:
        atexit._run_exitfuncs()
