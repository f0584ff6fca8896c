"""Starting ranks from inside Python: DDP from a notebook, or from a script that runs without a launcher.

Each rank is `python -m hasten.distribute.spawned_rank`, a fresh interpreter that gets the function by cloudpickle. So a
function of a notebook's cell or of a script is sent by value: nothing imports the script again, which needs no
`if __name__ == "__main__"` around it, and CUDA may be in use here already. Not taken:

- torch.multiprocessing's spawn, and ignite's launchers, which are made of it: they import the main script again in each
  rank (without a guard that starts ranks in turn) and can't send a function of a notebook;
- fork, as Lightning's ddp_notebook does: not possible once CUDA is in use, nor safe with torch's threads.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from torch import distributed

from hasten.distribute.world import detect_world

T = TypeVar("T")

SPAWNED = "HASTEN_SPAWNED"
"""Set in a rank that was started here."""
_GRACE_S = 5.0
"""How long the other ranks may take to end by themselves once one has failed."""
_SHOWN = 4000
_POLL_S = 0.05


class RankFailed(RuntimeError):
    """A rank ended with an error; the message holds its traceback, `__cause__` the error where it could be sent."""


def spawn_ddp(fn: Callable[..., T], *args: Any, nprocs: int, timeout_s: float | None = None, **kwargs: Any) -> T:
    """Run `fn(*args, **kwargs)` in `nprocs` ranks on this machine.

    The ranks see the environment that torchrun would set, so that `fn` may be anything that runs under it:
    `hasten.train`, or a function that joins a process group itself. What rank 0 prints is printed here.
    No process is left behind.

    Args:
        fn, args, kwargs: sent by cloudpickle, as is the result.
        nprocs: number of ranks.
        timeout_s: the ranks are ended after so long; None waits.

    Returns:
        What rank 0's `fn` returned.

    Raises:
        RankFailed: with the traceback of the rank that failed first.
        TimeoutError: after `timeout_s`.
        ValueError: where the ranks can't be started: in a rank, or for a function that can't be sent.

    Example:
        >>> def world_size():
        ...     import torch.distributed as dist
        ...
        ...     dist.init_process_group("gloo")
        ...     return dist.get_world_size()
        >>> ranks = hasten.spawn_ddp(world_size, nprocs=2)
    """
    _require_outside(nprocs)
    # The meeting point is held here: no port has to be guessed, and none can be taken meanwhile.
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    with tempfile.TemporaryDirectory(prefix="hasten-spawn-") as folder:
        task = Path(folder, "task")
        task.write_bytes(_pickle((fn, args, kwargs)))
        ranks: list[subprocess.Popen[bytes]] = []
        relay: threading.Thread | None = None
        try:
            for rank in range(nprocs):
                with Path(folder, f"{rank}.log").open("wb") as log:
                    # All of rank 0's goes through a pipe, as a notebook shows only what Python itself prints.
                    out = subprocess.PIPE if rank == 0 else log
                    ranks.append(_start_rank(rank, nprocs, store.port, task, out))
            relay = threading.Thread(target=_relay, args=(ranks[0], Path(folder, "0.log")), daemon=True)
            relay.start()
            late = _wait(ranks, Path(folder), timeout_s)
            failed = None if late else _failure(ranks, Path(folder))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            if relay is not None:
                relay.join(timeout=_GRACE_S)
        if failed is not None:
            raise failed
        if late:
            logs = "".join(_tail(Path(folder), number) for number in range(nprocs))
            raise TimeoutError(f"spawn_ddp: the ranks had not ended after {timeout_s:g} s{logs}")
        result: T = pickle.loads(Path(folder, "0.result").read_bytes())
        return result


def _require_outside(nprocs: int) -> None:
    if nprocs < 1:
        raise ValueError(f"nprocs: {nprocs}; must be at least 1")
    if SPAWNED in os.environ:
        raise ValueError(
            "spawn_ddp was called in a rank that spawn_ddp had started, which would start ranks without end; if the "
            'call stands at the top of a module, put it under `if __name__ == "__main__":`'
        )
    world = detect_world()
    if world.size > 1:
        raise ValueError(
            f"spawn_ddp: this process is {world} already, started by {world.launcher}; call the function itself, or "
            "start the script without a launcher"
        )


def _pickle(task: Any) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("spawn_ddp sends functions by cloudpickle: pip install 'hasten[notebook]'") from error
    try:
        packed: bytes = cloudpickle.dumps(task)
    except Exception as error:
        raise ValueError(
            f"spawn_ddp: the function or its arguments can't be sent to another process ({error}); open files, locks "
            "and generators inside the function instead"
        ) from error
    return packed


def _start_rank(rank: int, size: int, port: int, task: Path, out: Any) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        # As torchrun sets it if it hosts the store itself.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        SPAWNED: 1,
        # torchrun's default: ranks that each use all cores slow each other down.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # The rank can import whatever this process can, from the same places.
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "PYTHONUNBUFFERED": 1,
    }
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-P", "-m", "hasten.distribute.spawned_rank", str(task)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment)


def _relay(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.stdout is not None
    with log.open("ab") as log_file:
        for line in process.stdout:
            log_file.write(line)
            log_file.flush()
            # A notebook's output may be closed; that must not stop the ranks.
            with suppress(OSError, ValueError):
                sys.stdout.write(line.decode(errors="replace"))
                sys.stdout.flush()


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path, timeout_s: float | None) -> bool:
    """Wait until all ranks ended, or one failed and the grace period is over; True if `timeout_s` passed first."""
    end = time.monotonic() + timeout_s if timeout_s is not None else None
    grace: float | None = None
    while any(process.poll() is None for process in ranks):
        now = time.monotonic()
        if grace is None and _failed_ranks(ranks, folder):
            grace = now + _GRACE_S
        if grace is not None and now > grace:
            return False
        if grace is None and end is not None and now > end:
            return True
        time.sleep(_POLL_S)
    return False


def _failed_ranks(ranks: list[subprocess.Popen[bytes]], folder: Path) -> list[int]:
    """Ranks that ended without a result. With one, a process may still trip over gloo's threads on its way out."""
    return [
        number
        for number, process in enumerate(ranks)
        if process.poll() is not None and not (folder / f"{number}.result").exists()
    ]


def _failure(ranks: list[subprocess.Popen[bytes]], folder: Path) -> RankFailed | None:
    """The error of the first rank that failed. Called before the other ranks are ended."""
    errors = [(*pickle.loads(path.read_bytes()), path.stem) for path in folder.glob("*.error")]
    if errors:
        _, text, cause, rank = min(errors, key=lambda each: each[0])
        failed = RankFailed(f"rank {rank} of {len(ranks)}:\n{text}")
        failed.__cause__ = _unpickle(cause)
        return failed
    # Killed by the system, for example out of memory: it could not write its error.
    for number in _failed_ranks(ranks, folder):
        code = ranks[number].returncode
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RankFailed(f"rank {number} of {len(ranks)} {ended}{_tail(folder, number)}")
    return None


def _tail(folder: Path, number: int) -> str:
    log = folder / f"{number}.log"
    text = log.read_text(errors="replace")[-_SHOWN:].strip() if log.exists() else ""
    return f"\nlast lines of rank {number}:\n{text}" if text else ""


def _unpickle(cause: bytes | None) -> BaseException | None:
    """The exception; None if it could not be pickled or unpickled, as can happen with custom constructor arguments."""
    with suppress(Exception):
        error = pickle.loads(cause or b"")
        return error if isinstance(error, BaseException) else None
    return None
