"""The process group of a job: its rendezvous, with clear errors if an address can't be reached, and its timeouts."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from hasten.config.schema import DistributeConfig
from hasten.devices import kind_of
from hasten.distribute.world import LAUNCHER_PID, World
from hasten.files import first_line

log = logging.getLogger(__name__)

_LONG_TIMEOUT = timedelta(hours=12)
"""Timeout while one process prepares the data and the others wait: a large data set takes hours."""
_SAME_HOST_S = 15.0
"""How long ranks that nobody supervises wait for each other on one host, where all start at once."""
_SILENT_S = 20.0
"""How long ranks wait for each other without a word: the variables of another host may be left from an earlier job."""
_ONE_PROCESS = {
    "torchrun": "unset RANK WORLD_SIZE",
    "slurm": "unset SLURM_PROCID, or srun --ntasks=1",
    "mpi": "start it without mpirun",
    "horovod": "unset HOROVOD_RANK",
}
"""How to leave the job that a launcher's variables describe, which a shell may have inherited."""
_LATE_S = 2.0
"""Margin that lets torch's own timeouts expire first."""


class RendezvousError(ValueError):
    """The other processes can't be reached, or did not come."""


@contextmanager
def process_group(world: World, config: DistributeConfig, device: torch.device) -> Iterator[None]:
    """The default process group around the block, left again at its end. One process joins nothing.

    A rank that doesn't answer for `config.timeout_s` ends the others' collectives with an error. Raises ValueError
    where the group can't be joined: MASTER_ADDR and MASTER_PORT are the launcher's.
    """
    if world.size == 1 or distributed.is_initialized():
        yield
        return
    if world.launcher == "horovod" and "MASTER_ADDR" not in os.environ:
        from hasten.distribute.horovod import rendezvous_by_horovod

        rendezvous_by_horovod(world)
    _default_address(world)
    backend = config.backend if config.backend != "auto" else kind_of(device).backend
    if kind_of(device).accelerator:
        torch.accelerator.set_device_index(device)
    timeout = timedelta(seconds=config.timeout_s)
    telling = threading.Timer(_SILENT_S, _tell_waiting, [world, timeout])
    telling.daemon = True
    telling.start()
    try:
        store = _store(world, min(timeout, timedelta(seconds=_SAME_HOST_S)) if _unsupervised(world) else timeout)
        store.set_timeout(timeout)
        # A launcher's store outlives a failed start, whose keys must not be read by the next: neither NCCL's signal to
        # end, which has no prefix, nor addresses. The agents of torchrun count the starts of their own hosts alone.
        store.delete_key("exception_dump")
        if LAUNCHER_PID in os.environ or world.local_size == world.size:
            store = distributed.PrefixStore(f"start/{world.restarts}", store)
        distributed.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout)
    except RendezvousError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        raise _rendezvous_error(world, first_line(error)) from error
    finally:
        telling.cancel()
    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def long_timeout_group() -> Iterator[distributed.ProcessGroup | None]:
    """A group whose collectives wait for hours, for work that one process does before training."""
    if not distributed.is_initialized():
        yield None
        return
    group = distributed.new_group(backend="gloo", timeout=_LONG_TIMEOUT)
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)


def _default_address(world: World) -> None:
    """Set MASTER_ADDR and MASTER_PORT for srun and mpirun on one host, which don't set them."""
    if world.local_size == world.size:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: not set, so {world} does not know where to meet the others; "
            "start the job by `hasten launch`, torchrun or `hasten slurm submit`, which set them, or name the host of "
            f"rank 0 yourself: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500. {_as_one_process(world)}"
        )


def _unsupervised(world: World) -> bool:
    """Whether all ranks are on this host and no agent watches them: a shell may have inherited a job's variables."""
    by_agent = any(name.startswith("TORCHELASTIC_") for name in os.environ) or world.launcher in ("mpi", "horovod")
    return not by_agent and os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1")


def _tell_waiting(world: World, timeout: timedelta) -> None:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    text = "%s has waited %.0f s for the others at %s, and waits for %.0f s at most. %s"
    log.warning(text, world, _SILENT_S, where, timeout.total_seconds(), _as_one_process(world))


def _as_one_process(world: World) -> str:
    remedy = _ONE_PROCESS.get(world.launcher)
    return f"To run as one process: {remedy}" if remedy else ""


def _store(world: World, timeout: timedelta) -> distributed.Store:
    """The store of the rendezvous, within about `timeout`. Raises RendezvousError otherwise."""
    host, port, limit_s = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], timeout.total_seconds()
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise RendezvousError(f"MASTER_PORT={port}: must be the number of a port, 1 to 65535; the launcher sets it")
    held_by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    if not world.first or held_by_launcher:
        # torch would report it too, later, in a page of C++ frames.
        reason = why_unreachable(host, int(port), within_s=limit_s)
        if reason is not None:
            raise _rendezvous_error(world, reason)
    try:
        # What listens there may be another program, which would never answer.
        return with_timeout(
            lambda: next(distributed.rendezvous("env://", world.rank, world.size, timeout=timeout))[0],
            limit_s + _LATE_S,
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = "the port is taken by another program" if "EADDRINUSE" in str(error) else first_line(error)
        raise _rendezvous_error(world, reason) from error


def _rendezvous_error(world: World, reason: str) -> RendezvousError:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return RendezvousError(
        f"{world} could not meet the others at {where} ({reason}); check that rank 0 runs on the host of MASTER_ADDR, "
        f"that MASTER_PORT is free there and no firewall lies between, and that all ranks were started. "
        f"{_as_one_process(world)}".rstrip(". ")
    )


T = TypeVar("T")

_AGAIN_S = 0.2
_TRY_S = 5.0
_UNKNOWN_HOST_S = 30.0
"""How long an unknown host is retried: a cluster may publish its names a little after it starts processes."""


def why_unreachable(host: str, port: int, *, within_s: float) -> str | None:
    """None once a process listens at host:port; else, after `within_s` seconds, the reason.

    An unknown host or one without a route is given up sooner. A refused connection is retried to the end, as the
    process may start later.
    """
    begin = time.monotonic()
    while True:
        remaining_s, waits_s = begin + within_s - time.monotonic(), within_s
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(_TRY_S, remaining_s))).close()
            return None
        except ConnectionRefusedError:
            reason = "nobody listens there"
        except TimeoutError:
            reason = "no answer"
        except OSError as error:
            reason, waits_s = error.strerror or str(error), min(within_s, _UNKNOWN_HOST_S)
            if isinstance(error, socket.gaierror):
                reason = f"no host of that name: {error.strerror}"
        if time.monotonic() - begin + _AGAIN_S >= waits_s:
            return reason
        time.sleep(_AGAIN_S)


def with_timeout(call: Callable[[], T], seconds: float) -> T:
    """Return or raise what `call` does; TimeoutError after `seconds`, while it continues in a daemon thread.

    For calls without a timeout, such as torch's stores if the program at the address is not a store.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()
