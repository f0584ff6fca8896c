"""Which device a run uses, and the time of the work that it queues."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from hasten.config.check import DEVICE_NAMES, DEVICE_PATTERN
from hasten.devices import automatic, device_count, kind_of
from hasten.distribute.world import World

log = logging.getLogger(__name__)


def pick_device(name: str, world: World | None = None) -> torch.device:
    """The device of a name, one of `DEVICE_NAMES`. Raises ValueError for one that is not there.

    `auto` is a GPU of NVIDIA's or AMD's, else the CPU. With several processes on a host, `auto` and a name without a
    number give each process its own GPU.
    """
    if name == "auto":
        name = automatic().type
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise ValueError(f"train.device={name}: use {DEVICE_NAMES}")
    device = torch.device(name)
    kind = kind_of(device)
    if not kind.accelerator:
        return device
    count = device_count(device.type)
    if (device.index or 0) >= count:
        of_build = torch.accelerator.current_accelerator()
        missing = not count and (of_build is None or of_build.type != device.type)
        built = f", and torch {torch.__version__} is not built for any" if missing else ""
        names = "".join(f"{device.type}:{index}, " for index in range(count))
        found = f"this machine has {count} {device.type.upper()} devices{built}"
        raise ValueError(f"train.device={name}: {found}; use {names}auto or cpu")
    if world is not None and world.size > 1 and device.index is None:
        if not kind.backend:
            raise ValueError(f"train.device={name}: several processes can't share a step there; use cpu")
        if count < world.local_size:
            found = f"{count} {device.type.upper()} devices on {world.host} for {world.local_size} processes"
            raise ValueError(f"train.device={name}: {found}; start as many as there are devices")
        return torch.device(name, world.local_rank)
    if kind.fallback and os.environ.get(kind.fallback) != "1":
        log.warning("%s: what torch lacks there is an error; set %s=1 before torch is imported", device, kind.fallback)
    return device


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU that is named by its number the current one for the block: Triton launches nowhere else."""
    return torch.accelerator.device_index(device.index if kind_of(device).streams else None)


def synchronize(device: torch.device) -> None:
    """Wait until the work that is queued on an accelerator is done."""
    if kind_of(device).accelerator:
        torch.accelerator.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call with the work that it queues on a GPU, from the end of earlier work on."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin
