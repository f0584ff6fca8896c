"""Starts the ranks of a test on loopback, each `python -m MODULE ARGS`, and collects what they found.

A rank's module prints its findings with `tell` and may print before it what it likes:

    from tests.distribute.ranks import tell
    world = detect_world()
    with process_group(world, config, torch.device("cpu")):
        ...
        tell({"sum": 3})
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from torch import distributed

from tests.processes import Program

_GRACE_S = 5.0
"""How long the other ranks may take to end by themselves after one has failed."""


def run_ranks(
    module: str, world: int, *args: object, timeout_s: float = 600, env: Mapping[str, str] | None = None
) -> list[Any]:
    """Of each rank, what the last line that it printed says in JSON.

    The ranks see the environment that torchrun would set; the store that they meet at is held here, so that no port has
    to be guessed. Raises AssertionError with the standard error of the rank that failed first, or of all after
    `timeout_s`. No process is left behind.
    """
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    ranks: list[Program] = []
    try:
        for rank in range(world):
            environment = {**os.environ, **_told(rank, world, store.port), **(env or {})}
            ranks.append(Program("-m", module, *map(str, args), env=environment))
            ranks[-1].collect()
        codes, first = _wait(ranks, timeout_s)
    finally:
        for process in ranks:
            process.kill()
        outputs = [process.communicate() for process in ranks]
    if any(codes) or None in codes:
        ended = ", ".join("still ran" if code is None else f"ended with {code}" for code in codes)
        errors = "\n".join(f"--- rank {number}:\n{error[-8000:]}" for number, (_, error) in enumerate(outputs))
        raise AssertionError(
            f"{module}: ranks {ended}" + (f"; rank {first} first\n" if first is not None else "\n") + errors
        )
    return [_last_line(module, rank, output) for rank, (output, _) in enumerate(outputs)]


def tell(result: Any) -> NoReturn:
    """Print a rank's findings and end it, once all ranks have told theirs."""
    print("\n" + json.dumps(result), flush=True)
    if distributed.is_initialized():
        distributed.barrier()
    sys.stderr.flush()
    # Taking gloo's threads down, torch aborts now and then ("terminate called without an active exception").
    os._exit(0)


def _told(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # What torchrun says where it holds the store itself.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def _wait(ranks: list[Program], timeout_s: float) -> tuple[list[int | None], int | None]:
    """Their exit codes, None of one that still ran, and the rank that failed first."""
    end, first = time.monotonic() + timeout_s, None
    while any(process.poll() is None for process in ranks) and time.monotonic() < end:
        if first is None:
            first = next((number for number, process in enumerate(ranks) if process.poll()), None)
            # The others miss it soon; a lasting hang of theirs is not waited for.
            end = end if first is None else time.monotonic() + _GRACE_S
        time.sleep(0.02)
    return [process.poll() for process in ranks], first


def _last_line(module: str, rank: int, output: str) -> Any:
    lines = output.splitlines()
    assert lines, f"{module}: rank {rank} printed nothing"
    return json.loads(lines[-1])
