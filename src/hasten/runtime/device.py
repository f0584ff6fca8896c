"""Which device a run uses, and the time of the work that it queues."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from hasten.distribute.world import World


def pick_device(name: str, world: World | None = None) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises ValueError for a device that is not there.

    With several processes on a host, `auto` and `cuda` give each process its own GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if world is None or world.size == 1:
            return torch.device(name)
    if name == "cuda" and world is not None and world.size > 1:
        if count < world.local_size:
            found = f"{count} CUDA devices on {world.host} for {world.local_size} processes"
            raise ValueError(f"train.device={name}: {found}; start as many as there are devices")
        name = f"cuda:{world.local_rank}"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"train.device={name}: use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        names = "".join(f"cuda:{index}, " for index in range(count))
        raise ValueError(f"train.device={name}: this machine has {count} CUDA devices; use {names}auto or cpu")
    return device


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU that is named by its number the current one for the block: Triton launches nowhere else."""
    return nullcontext() if device.type != "cuda" or device.index is None else torch.cuda.device(device)


def synchronize(device: torch.device) -> None:
    """Wait until the work that is queued on a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call with the work that it queues on a GPU, from the end of earlier work on."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin
