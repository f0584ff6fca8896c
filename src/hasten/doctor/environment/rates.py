"""Peak rates of this machine: disk, gunzip, memory, copies to the device, matrix multiplication."""

from __future__ import annotations

import gzip
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hasten.doctor.environment.check import Check, check
from hasten.doctor.training import DTYPES, synchronize, tensor_cores
from hasten.files import existing

_FILE_BYTES = 64 * 2**20
_BLOCK = 4 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Bytes and operations a second; None was not measured."""

    cache_disk: float | None = None
    data_disk: float | None = None
    gunzip: float | None = None
    """Uncompressed bytes, by the library that Hasten uses."""
    gunzip_plain: float | None = None
    """Uncompressed bytes, by the standard library."""
    copy: float | None = None
    """Bytes copied from memory to memory of the training device."""
    matmul: dict[str, float] | None = None
    """Floating point operations a second by precision."""
    pinned: float | None = None
    """Bytes copied from pinned memory of the host to the device."""
    pageable: float | None = None


def times_of(call: Callable[[], object], device: torch.device | None = None) -> Iterator[float]:
    """Seconds of one call after another, without end; a first call isn't counted."""
    for number in itertools.count():
        start = time.perf_counter()
        call()
        if device is not None:
            synchronize(device)
        if number:
            yield time.perf_counter() - start


def best_of(call: Callable[[], object], *, seconds: float, device: torch.device | None = None) -> float:
    """Shortest time of a call, after a warm-up call, over about `seconds` seconds (at least 3 calls)."""
    times: list[float] = []
    start = time.perf_counter()
    for elapsed in itertools.islice(times_of(call, device), 999):
        times.append(elapsed)
        if len(times) >= 3 and time.perf_counter() - start > seconds:
            break
    return min(times)


def write_rate_file(folder: Path) -> Path:
    """Write a synced file of random bytes into `folder` or its nearest existing parent."""
    block = np.random.default_rng(0).bytes(_BLOCK)
    handle, name = tempfile.mkstemp(dir=existing(folder), prefix=".hasten-doctor-")
    try:
        with os.fdopen(handle, "wb") as file:
            for _ in range(_FILE_BYTES // _BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def read_rate(paths: list[Path], *, seconds: float = 2.0) -> float | None:
    """Bytes a second of reading files one after another past the page cache, for at most about this many seconds.

    None if nothing could be read. Files are only read. Caches of the host or the disk can't be dropped.
    """
    num_bytes, elapsed = 0, 0.0
    buffer = bytearray(_BLOCK)
    for path in paths:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            while (count := file.readinto(buffer)) and elapsed + time.perf_counter() - begin < seconds:
                num_bytes += count
            elapsed += time.perf_counter() - begin
        if elapsed >= seconds or num_bytes >= 4 * _FILE_BYTES:
            break
    return num_bytes / elapsed if num_bytes and elapsed > 0 else None


def cache_disk_rate(folder: Path) -> float | None:
    """Rate of the cache folder's disk, by a temporary file; None if none can be written."""
    try:
        path = write_rate_file(folder)
    except OSError:
        return None
    try:
        return read_rate([path])
    finally:
        path.unlink(missing_ok=True)


def data_disk_rate(place: Path) -> float | None:
    """Rate of a data set's disk, by reading some of its files; nothing is written."""
    if place.is_file():
        return read_rate([place])
    files: list[Path] = []
    for path in place.rglob("*"):
        if path.is_file() and path.stat().st_size > 1024:
            files.append(path)
        if len(files) >= 400:
            break
    return read_rate(sorted(files, key=lambda path: -path.stat().st_size))


def gunzip_rates() -> tuple[float | None, float]:
    """Uncompressed bytes a second of isal (None if it is missing) and of the standard library, on a CT-like volume."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(-1000, 1000, 8 * 2**20 // 2)
    volume = (ramp + rng.normal(0, 12, ramp.size)).astype(np.int16).tobytes()
    packed = gzip.compress(volume, 1)
    plain = len(volume) / best_of(lambda: gzip.decompress(packed), seconds=0.2)
    try:
        from isal import igzip
    except ImportError:
        return None, plain
    return len(volume) / best_of(lambda: igzip.decompress(packed), seconds=0.2), plain


def copy_rate(device: torch.device) -> float:
    """Bytes a second copied within the device's memory (each is read once and written once), past any cache."""
    count = (256 if device.type == "cuda" else 48) * 2**20
    source, target = (torch.ones(count, dtype=torch.uint8, device=device) for _ in range(2))
    return count / best_of(lambda: target.copy_(source), seconds=0.2, device=device)


def matmul_rate(device: torch.device, precision: str) -> float:
    """Floating point operations a second of a large square product of random numbers: ones are multiplied faster."""
    side = 4096 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)
    matrix = torch.randn(side, side, generator=generator, device=device).to(DTYPES.get(precision, torch.float32))
    with tensor_cores(device, precision):
        return 2 * side**3 / best_of(lambda: matrix @ matrix, seconds=0.2, device=device)


def transfer_rates(device: torch.device) -> tuple[float, float]:
    """Bytes a second from pinned and from pageable host memory to a CUDA device."""
    count = 64 * 2**20
    target = torch.empty(count, dtype=torch.uint8, device=device)
    rates = []
    for pin in (True, False):
        source = torch.ones(count, dtype=torch.uint8, pin_memory=pin)
        rates.append(count / best_of(lambda source=source: target.copy_(source), seconds=0.2, device=device))  # type: ignore[misc]
    return rates[0], rates[1]


def measure_rates(device: torch.device, *, cache: Path, data: Path | None = None) -> Rates:
    """All of them, in about four seconds. cache: the cache folder; data: a data set whose disk is timed too."""
    isal, plain = gunzip_rates()
    precisions = ("fp32", "tf32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16")
    pinned, pageable = transfer_rates(device) if device.type == "cuda" else (None, None)
    return Rates(
        cache_disk=cache_disk_rate(cache),
        data_disk=data_disk_rate(data) if data is not None else None,
        gunzip=isal or plain,
        gunzip_plain=plain,
        copy=copy_rate(device),
        matmul={precision: matmul_rate(device, precision) for precision in precisions},
        pinned=pinned,
        pageable=pageable,
    )


_SLOW_CACHE = 150e6
"""Below this, crops from the file can't keep up with most networks."""
_SLOW_DATA = 50e6
"""Small packed files, each read once, may come more slowly."""


def check_rates(rates: Rates) -> tuple[Check, ...]:
    """Checks of the rates. Only grossly low ones are reported: no rate is wrong by itself."""
    checks = []
    for name, rate, least, setting in (
        ("disk of the cache", rates.cache_disk, _SLOW_CACHE, "cache.dir=/local/folder (or HASTEN_CACHE)"),
        ("disk of the data", rates.data_disk, _SLOW_DATA, "data.source=/local/folder"),
    ):
        if rate is not None:
            slow = rate < least
            text = f"{'only ' if slow else ''}{_mb(rate)}, read past the page cache"
            checks.append(check("rates", name, text, f"move it to a local disk: {setting}" if slow else ""))
    if rates.gunzip is not None and rates.gunzip_plain is not None:
        text, remedy = f"{_mb(rates.gunzip)} of one thread; the standard library {_mb(rates.gunzip_plain)}", ""
        if rates.gunzip <= 1.05 * rates.gunzip_plain:
            text, remedy = f"{text}: isal is missing or no faster", "pip install isal"
        checks.append(check("rates", "gunzip", text, remedy))
    if rates.copy is not None:
        checks.append(check("rates", "memory copy", f"{rates.copy / 1e9:.1f} GB/s"))
    if rates.matmul:
        text = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in rates.matmul.items())
        checks.append(check("rates", "matrix product", f"{text} GFLOP/s"))
    if rates.pinned is not None and rates.pageable is not None:
        text = f"{rates.pinned / 1e9:.1f} GB/s from pinned memory, {rates.pageable / 1e9:.1f} GB/s from pageable"
        lanes = "check that the GPU has all its PCIe lanes (nvidia-smi -q -d PCIE)"
        remedy = f"{lanes}; keep the cases on it: cache.home=device" if rates.pinned < 4e9 else ""
        checks.append(check("rates", "host to device", text, remedy))
    return tuple(checks)


def _mb(rate: float) -> str:
    return f"{rate / 1e6:,.0f} MB/s"
