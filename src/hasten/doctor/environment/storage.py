"""Free space of everything that may hold cases, batches and weights, and the rates of the disk and to the GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import torch

from hasten.config.size import size_text
from hasten.devices import automatic, device_count, device_name, free_bytes, kind_of, total_bytes
from hasten.doctor.environment.check import Check, check
from hasten.doctor.training import seconds_of
from hasten.files import existing
from hasten.observe.cores import available_memory

GIB = 2**30
_FILE_BYTES, _BLOCK = 64 * 2**20, 4 * 2**20
_SLOW_DISK = 150e6
"""Bytes a second below which crops from the file can't keep up with most networks."""
_SLOW_COPY = 4e9
"""Bytes a second below which a GPU lacks some of its lanes."""


def check_storage(cache: Path) -> Iterator[Check]:
    """cache: the cache folder, which need not exist yet."""
    free = shutil.disk_usage(existing(cache)).free
    remedy = "make room there (`hasten cache prune`), or set cache.dir or HASTEN_CACHE to another disk"
    yield room("cache", f"{size_text(free)} free for {cache}", free, (GIB, 10 * GIB), remedy)
    memory = available_memory()
    text = f"{size_text(memory)} may be taken, of {size_text(psutil.virtual_memory().total)}"
    remedy = "end other programs, raise the container's or job's memory limit, or set cache.home=file"
    yield room("memory", text, memory, (GIB // 2, 2 * GIB), remedy)
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        text = f"{size_text(free)} free in {shared}, where workers of a DataLoader hand their batches over"
        remedy = "docker run --ipc=host or --shm-size=8g; Hasten's own loader needs none"
        yield room("shared memory", text, free, (0, GIB), remedy)
    rate = disk_rate(cache)
    if rate is not None:
        remedy = "move the cache to a local disk: cache.dir=/local/folder (or HASTEN_CACHE)"
        text = f"{rate / 1e6:,.0f} MB/s, read past the page cache"
        yield check("storage", "disk of the cache", text, remedy if rate < _SLOW_DISK else "")
    device = automatic()
    for index in range(device_count(device.type) if kind_of(device).accelerator else 0):
        yield from _gpu(torch.device(device.type, index))


def room(name: str, text: str, free: int, least: tuple[int, int], remedy: str) -> Check:
    """least: free bytes below which it is bad, and below which it is a warning."""
    bad, warn = least
    return check("storage", name, text, remedy if free < warn else "", level="bad" if free < bad else "warn")


def _gpu(device: torch.device) -> Iterator[Check]:
    name, free, total = str(device), free_bytes(device), total_bytes(device)
    text = f"{device_name(device)}: {size_text(free)} free of {size_text(total)}"
    remedy = "see `nvidia-smi` for what holds the rest, or train.device=cuda:N for a free one"
    yield room(name, text, free, (0, int(0.8 * total)), remedy)
    rate = transfer_rate(device)
    remedy = "check that it has all its PCIe lanes (nvidia-smi -q -d PCIE); cache.home=device keeps the cases on it"
    yield check("storage", f"copies to {name}", f"{rate / 1e9:.1f} GB/s", remedy if rate < _SLOW_COPY else "")


def disk_rate(folder: Path) -> float | None:
    """Bytes a second of reading a temporary file in `folder` past the page cache; None if none can be written."""
    block = np.random.default_rng(0).bytes(_BLOCK)
    try:
        with tempfile.TemporaryFile(dir=existing(folder), buffering=0) as file:
            for _ in range(_FILE_BYTES // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
            file.seek(0)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin, buffer = time.perf_counter(), bytearray(_BLOCK)
            while file.readinto(buffer):
                pass
            return _FILE_BYTES / (time.perf_counter() - begin)
    except OSError:
        return None


def transfer_rate(device: torch.device) -> float:
    """Bytes a second from host memory, pinned where it can be, to an accelerator, the best of some copies."""
    source = torch.ones(_FILE_BYTES, dtype=torch.uint8, pin_memory=kind_of(device).streams)
    target = torch.empty(_FILE_BYTES, dtype=torch.uint8, device=device)
    return _FILE_BYTES / min(seconds_of(lambda: target.copy_(source), device) for _ in range(5))
