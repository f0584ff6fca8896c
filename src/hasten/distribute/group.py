"""Joining the other processes: the process group of a job, and clear errors where it can't be joined."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from hasten.config.schema import DistributeConfig
from hasten.distribute.world import World

_PATIENT = timedelta(hours=12)
"""What one process may do before training while the others wait for it: preparing a large data set takes hours."""


class NotMet(ValueError):
    """The other processes can't be reached, or did not come."""


@contextmanager
def joined(world: World, config: DistributeConfig, device: torch.device) -> Iterator[None]:
    """The default process group around the block, left again at its end. One process joins nothing.

    A rank that doesn't answer for `config.timeout_s` ends the others' collectives with an error. Raises ValueError
    where the group can't be joined: MASTER_ADDR and MASTER_PORT are the launcher's.
    """
    if world.size == 1 or distributed.is_initialized():
        yield
        return
    if world.launcher == "horovod" and "MASTER_ADDR" not in os.environ:
        from hasten.distribute.horovod import meet_by_horovod

        meet_by_horovod(world, config)
    _default_address(world)
    backend = config.backend if config.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=config.timeout_s)
    try:
        distributed.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=timeout)
    except (RuntimeError, ValueError, OSError) as error:
        raise NotMet(_unreachable(world, error)) from error
    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def patient_group() -> Iterator[distributed.ProcessGroup | None]:
    """A group whose collectives wait for hours, for work that one process does before training."""
    if not distributed.is_initialized():
        yield None
        return
    group = distributed.new_group(backend="gloo", timeout=_PATIENT)
    try:
        yield group
    finally:
        distributed.destroy_process_group(group)


def _default_address(world: World) -> None:
    """srun and mpirun on one host tell of no meeting point."""
    if world.local_size == world.size:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: not set, so {world} does not know where to meet the others; "
            "start the job by `hasten launch`, torchrun or `hasten slurm submit`, which set them"
        )


def _unreachable(world: World, error: Exception) -> str:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"{world} could not meet the others at {where} ({reason}); check that rank 0 runs there, that the port is "
        "free and that no firewall lies between"
    )
