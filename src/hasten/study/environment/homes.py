"""Checks the free space of everything that may hold cases, batches and weights."""

from __future__ import annotations

import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hasten.cache.memory import available_memory
from hasten.config.size import size_text
from hasten.files import existing
from hasten.study.environment.check import Check, Level, check

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    name: str
    total: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Homes:
    """Bytes; None is unknown or unlimited."""

    cache: str
    cache_free: int
    ram_total: int
    ram_available: int
    """What this process may still use, within the limits of its control groups."""
    shm_total: int | None = None
    shm_free: int | None = None
    locked: int | None = None
    """Memory that may be locked; None for no limit."""
    gpus: tuple[GpuMemory, ...] = ()


def check_homes(homes: Homes) -> tuple[Check, ...]:
    """One check for each home."""
    return (
        _cache(homes),
        _ram(homes),
        *_shm(homes),
        _locked(homes),
        *(_gpu(gpu, number) for number, gpu in enumerate(homes.gpus)),
    )


def _cache(homes: Homes) -> Check:
    text = f"{size_text(homes.cache_free)} free for {homes.cache}"
    remedy = "make room there (`hasten cache prune`), or set cache.dir or HASTEN_CACHE to another disk"
    level: Level = "bad" if homes.cache_free < GIB else "warn"
    return check("homes", "cache", text, remedy if homes.cache_free < 10 * GIB else "", level=level)


def _ram(homes: Homes) -> Check:
    text = f"{size_text(homes.ram_available)} may be taken, of {size_text(homes.ram_total)}"
    remedy = "end other programs, raise the container's or job's memory limit, or set cache.home=file"
    level: Level = "bad" if homes.ram_available < GIB // 2 else "warn"
    return check("homes", "memory", text, remedy if homes.ram_available < 2 * GIB else "", level=level)


def _shm(homes: Homes) -> list[Check]:
    if homes.shm_total is None or homes.shm_free is None:
        return []
    text, remedy = f"{size_text(homes.shm_free)} free of {size_text(homes.shm_total)} in /dev/shm", ""
    if homes.shm_free < GIB:
        text += ": workers of a DataLoader hand their batches over there, and end with a bus error where it is full"
        remedy = "docker run --ipc=host or --shm-size=8g; Hasten's own loader needs none"
    return [check("homes", "shared memory", text, remedy)]


def _locked(homes: Homes) -> Check:
    text, remedy = "no limit" if homes.locked is None else f"at most {size_text(homes.locked)}", ""
    # CUDA's pinned memory goes through its driver and is not counted here; network cards' is.
    if len(homes.gpus) > 1 and homes.locked is not None and homes.locked < GIB:
        remedy = "ulimit -l unlimited, or docker run --ulimit memlock=-1, where several machines train together"
    return check("homes", "locked memory", text, remedy)


def _gpu(gpu: GpuMemory, number: int) -> Check:
    text, remedy = f"{gpu.name}: {size_text(gpu.free)} free of {size_text(gpu.total)}", ""
    if gpu.free < 0.8 * gpu.total:
        text += "; another program holds the rest"
        remedy = "see `nvidia-smi` for who does, or train.device=cuda:N for a free one"
    return check("homes", f"cuda:{number}", text, remedy)


def homes_here(cache: Path) -> Homes:
    """cache: the cache folder, which need not exist yet."""
    shm = Path("/dev/shm")
    shared = shutil.disk_usage(shm) if shm.is_dir() else None
    return Homes(
        cache=str(cache),
        cache_free=shutil.disk_usage(existing(cache)).free,
        ram_total=psutil.virtual_memory().total,
        ram_available=available_memory(),
        shm_total=shared.total if shared else None,
        shm_free=shared.free if shared else None,
        locked=_locked_limit(),
        gpus=_gpus(),
    )


def _locked_limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _gpus() -> tuple[GpuMemory, ...]:
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(GpuMemory(name=torch.cuda.get_device_name(index), total=total, free=free))
    return tuple(gpus)
