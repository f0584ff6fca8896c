"""Checks the free space of everything that may hold cases, batches and weights."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hasten.config.size import size_text
from hasten.doctor.environment.check import Check, check
from hasten.files import existing
from hasten.observe.cores import available_memory

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    name: str
    total: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Homes:
    """Bytes; None is unknown."""

    cache: str
    cache_free: int
    ram_total: int
    ram_available: int
    """What this process may still use, within the limits of its control groups."""
    shm_free: int | None = None
    gpus: tuple[GpuMemory, ...] = ()


def check_homes(homes: Homes) -> tuple[Check, ...]:
    """One check for each home."""
    checks = [
        _room(
            "cache",
            f"{size_text(homes.cache_free)} free for {homes.cache}",
            homes.cache_free,
            (GIB, 10 * GIB),
            "make room there (`hasten cache prune`), or set cache.dir or HASTEN_CACHE to another disk",
        ),
        _room(
            "memory",
            f"{size_text(homes.ram_available)} may be taken, of {size_text(homes.ram_total)}",
            homes.ram_available,
            (GIB // 2, 2 * GIB),
            "end other programs, raise the container's or job's memory limit, or set cache.home=file",
        ),
    ]
    if homes.shm_free is not None:
        text = f"{size_text(homes.shm_free)} free in /dev/shm, where workers of a DataLoader hand their batches over"
        remedy = "docker run --ipc=host or --shm-size=8g; Hasten's own loader needs none"
        checks.append(_room("shared memory", text, homes.shm_free, (0, GIB), remedy))
    for number, gpu in enumerate(homes.gpus):
        text = f"{gpu.name}: {size_text(gpu.free)} free of {size_text(gpu.total)}"
        remedy = "see `nvidia-smi` for what holds the rest, or train.device=cuda:N for a free one"
        checks.append(_room(f"cuda:{number}", text, gpu.free, (0, int(0.8 * gpu.total)), remedy))
    return tuple(checks)


def _room(name: str, text: str, free: int, least: tuple[int, int], remedy: str) -> Check:
    """least: free bytes below which it is bad, and below which it is a warning."""
    bad, warn = least
    return check("homes", name, text, remedy if free < warn else "", level="bad" if free < bad else "warn")


def homes_here(cache: Path) -> Homes:
    """cache: the cache folder, which need not exist yet."""
    shm = Path("/dev/shm")
    return Homes(
        cache=str(cache),
        cache_free=shutil.disk_usage(existing(cache)).free,
        ram_total=psutil.virtual_memory().total,
        ram_available=available_memory(),
        shm_free=shutil.disk_usage(shm).free if shm.is_dir() else None,
        gpus=_gpus(),
    )


def _gpus() -> tuple[GpuMemory, ...]:
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(GpuMemory(name=torch.cuda.get_device_name(index), total=total, free=free))
    return tuple(gpus)
