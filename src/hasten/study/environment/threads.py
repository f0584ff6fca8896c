"""Threads: their number against the usable cores, and settings that are known to slow them down."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from hasten.observe.env import usable_cores
from hasten.study.environment.check import Check, Level


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """What decides how many cores a training really gets."""

    usable: int
    """Cores that this process may run on."""
    logical: int
    """Of the machine; hyperthreads count."""
    physical: int
    torch: int
    """Threads of torch's operators."""
    quota: float | None = None
    """Cores' worth of time that the control group allows, where it limits it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    openmp: tuple[str, ...] = ()
    """OpenMP libraries that this process has loaded."""

    @property
    def wanted(self) -> int:
        """Threads that make sense: one for a core that may be used, none for its second hyperthread."""
        cores = min(self.usable, max(1, self.physical))
        return max(1, cores if self.quota is None else min(cores, math.floor(self.quota)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trap:
    """An environment variable that costs time or correctness while it is so."""

    variable: str
    set_badly: Callable[[str], bool]
    told: str
    remedy: str
    level: Level = "warn"


def _is_on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "on", "yes", "t", "y")


_TRAPS = (
    Trap(
        variable="GOMP_CPU_AFFINITY",
        set_badly=bool,
        told="binds the threads of every process to the same cores, so that a second process halves both",
        remedy="unset GOMP_CPU_AFFINITY",
    ),
    Trap(
        variable="KMP_AFFINITY",
        set_badly=lambda value: value.strip().lower() not in ("disabled", "none"),
        told="binds the threads of every process to the same cores, so that a second process halves both",
        remedy="unset KMP_AFFINITY, or KMP_AFFINITY=disabled",
    ),
    Trap(
        variable="OMP_PROC_BIND",
        set_badly=lambda value: value.strip().lower() not in ("false", ""),
        told="binds the threads of every process to the same cores, so that a second process halves both",
        remedy="unset OMP_PROC_BIND",
    ),
    Trap(
        variable="OMP_WAIT_POLICY",
        set_badly=lambda value: value.strip().lower() == "active",
        told="threads that wait keep their cores busy: other threads of the run, and other programs, stand still",
        remedy="unset OMP_WAIT_POLICY",
    ),
    Trap(
        variable="OMP_DYNAMIC",
        set_badly=_is_on,
        told="OpenMP may take fewer threads than it is told to, differently each time",
        remedy="unset OMP_DYNAMIC",
    ),
    Trap(
        variable="KMP_DUPLICATE_LIB_OK",
        set_badly=_is_on,
        told="hides that two OpenMP libraries are loaded, which can give wrong numbers",
        remedy="unset KMP_DUPLICATE_LIB_OK and install all packages from one source",
    ),
    Trap(
        variable="CUDA_LAUNCH_BLOCKING",
        set_badly=_is_on,
        told="every kernel is waited for, so that the host queues nothing ahead",
        remedy="unset CUDA_LAUNCH_BLOCKING",
    ),
    Trap(
        variable="PYTORCH_NO_CUDA_MEMORY_CACHING",
        set_badly=_is_on,
        told="every tensor is a call to the driver's allocator, which waits for the device",
        remedy="unset PYTORCH_NO_CUDA_MEMORY_CACHING",
    ),
    Trap(
        variable="NVIDIA_TF32_OVERRIDE",
        set_badly=lambda value: value.strip() == "0",
        told="switches TF32 off in every library, whatever a run sets",
        remedy="unset NVIDIA_TF32_OVERRIDE",
    ),
    Trap(
        variable="TORCH_SHOW_DISPATCH_TRACE",
        set_badly=_is_on,
        told="prints every operation",
        remedy="unset TORCH_SHOW_DISPATCH_TRACE",
    ),
    Trap(
        variable="PYTHONMALLOC",
        set_badly=lambda value: "debug" in value,
        told="checks every allocation of Python's",
        remedy="unset PYTHONMALLOC",
    ),
    Trap(
        variable="PYTHONDEVMODE",
        set_badly=bool,
        told="Python runs with its checks for developers",
        remedy="unset PYTHONDEVMODE",
    ),
)
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def check_threads(threads: Threads) -> tuple[Check, ...]:
    """Checks of the problems found, and one check that reports the numbers."""
    text = (
        f"torch uses {threads.torch} threads; this process may run on {threads.usable} of {threads.logical} cores"
        f" ({threads.physical} of the machine without hyperthreads)"
    )
    if threads.quota is not None:
        text += f", for {threads.quota:g} cores' worth of time"
    return (_number(threads, text), *_affinity(threads), *_settings(threads))


def _number(threads: Threads, text: str) -> Check:
    expected = threads.wanted
    if threads.torch > max(1, threads.usable if threads.quota is None else min(threads.usable, _up(threads.quota))):
        text += ": they take turns, and those that wait spin"
    elif threads.torch < expected:
        set_by = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in threads.variables else "torch.set_num_threads"
        text += f": the rest stand idle in every step on the CPU ({set_by})"
    else:
        return Check(area="threads", name="threads", told=text)
    return Check(area="threads", name="threads", level="warn", told=text, remedy=f"export OMP_NUM_THREADS={expected}")


def _up(quota: float) -> int:
    return max(1, math.ceil(quota))


def _affinity(threads: Threads) -> list[Check]:
    checks = []
    if threads.usable == 1 < threads.logical:
        text = f"this process is held to one of {threads.logical} cores: loading and training take turns"
        remedy = "ask the batch system for more cores (--cpus-per-task), or start it without taskset"
        checks.append(Check(area="threads", name="affinity", level="warn", told=text, remedy=remedy))
    if threads.quota is not None and threads.quota < 1:
        text = f"the control group allows {threads.quota:g} of a core"
        remedy = "give the container more: docker run --cpus=4, resources.limits.cpu"
        checks.append(Check(area="threads", name="quota", level="warn", told=text, remedy=remedy))
    if len(threads.openmp) > 1:
        text = f"two OpenMP libraries are loaded, whose threads compete: {', '.join(threads.openmp)}"
        remedy = "install torch, numpy and scipy from one source (all pip, or all conda)"
        checks.append(Check(area="threads", name="openmp", level="warn", told=text, remedy=remedy))
    return checks


def _settings(threads: Threads) -> list[Check]:
    checks = []
    counts = {name: threads.variables[name] for name in _COUNTS if name in threads.variables}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name}={value}" for name, value in counts.items()) + ": libraries disagree on the threads"
        first, value = next(iter(counts.items()))
        remedy = f"set only {first}={value}"
        checks.append(Check(area="threads", name="thread variables", level="warn", told=text, remedy=remedy))
    for trap in _TRAPS:
        value = threads.variables.get(trap.variable, "")
        if value and trap.set_badly(value):
            text = f"{trap.variable}={value}: {trap.told}"
            checks.append(Check(area="threads", name=trap.variable, level=trap.level, told=text, remedy=trap.remedy))
    return checks


def threads_here() -> Threads:
    """Of this process."""
    names = {*_COUNTS, *(trap.variable for trap in _TRAPS)}
    return Threads(
        usable=usable_cores(),
        logical=psutil.cpu_count() or 1,
        physical=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        torch=torch.get_num_threads(),
        quota=cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        variables={name: os.environ[name] for name in sorted(names) if os.environ.get(name)},
        openmp=_openmp(),
    )


def cpu_quota(own: Path, root: Path) -> float | None:
    """Cores' worth of time that the control groups of a process allow; None for no limit.

    own: the file that lists the groups, as /proc/self/cgroup; root: where their files lie.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        number, controllers, name = line.split(":", 2)
        base = root if number == "0" else root / "cpu" if "cpu" in controllers.split(",") else None
        if base is None:
            continue
        group = base / name.lstrip("/")
        limits += [_quota_of(level) for level in (group, *group.parents) if level.is_relative_to(base)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").is_file():
            allowed, period = (group / "cpu.max").read_text().split()
        else:
            allowed = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return None if allowed in ("max", "-1") else float(allowed) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _openmp() -> tuple[str, ...]:
    try:
        loaded = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return ()
    # Copies of one library (a wheel's own libgomp) are one kind; two kinds are what competes.
    return tuple(sorted(set(re.findall(r"/lib(gomp|iomp5|omp)[-.\w]*\.so", loaded))))
