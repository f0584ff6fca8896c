"""Threads: their number against the usable cores, and settings that are known to slow them down."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from hasten.doctor.environment.check import Check, check
from hasten.observe.cores import SPIN_NAMES, allowed_cpus, cpu_quota, environment_of_user, spin_is_chosen, spin_text
from hasten.observe.cpu_load import BUSY
from hasten.system import text_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """What decides how many cores a training really gets."""

    usable: int
    """Cores that this process may run on."""
    logical: int
    """Cores of the machine; hyperthreads count."""
    physical: int
    torch: int
    """Threads of torch's operators."""
    quota: float | None = None
    """Cores' worth of time that the control group allows, where it limits it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    openmp: tuple[str, ...] = ()
    """OpenMP libraries that this process has loaded."""
    others: float = 0.0
    """Cores that other programs use."""

    @property
    def wanted(self) -> int:
        """Threads that make sense: one for a core that may be used, none for its second hyperthread."""
        cores = min(self.usable, max(1, self.physical))
        return max(1, cores if self.quota is None else min(cores, math.floor(self.quota)))


def _is_on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "on", "yes", "t", "y")


_BINDS = "binds the threads of every process to the same cores, so that a second process halves both"
_TRAPS: dict[str, tuple[Callable[[str], bool], str]] = {
    "GOMP_CPU_AFFINITY": (bool, _BINDS),
    "KMP_AFFINITY": (lambda value: value.strip().lower() not in ("disabled", "none"), _BINDS),
    "OMP_PROC_BIND": (lambda value: value.strip().lower() not in ("false", ""), _BINDS),
    "OMP_WAIT_POLICY": (lambda value: value.strip().lower() == "active", "threads that wait keep their cores busy"),
    "CUDA_LAUNCH_BLOCKING": (_is_on, "every kernel is waited for, so that the host queues nothing ahead"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_is_on, "every tensor is a call to the driver's allocator"),
    "NVIDIA_TF32_OVERRIDE": (lambda value: value.strip() == "0", "switches TF32 off, whatever a run sets"),
}
"""Environment variables that cost time: for which values, and why."""


def check_threads(threads: Threads) -> tuple[Check, ...]:
    """Checks of the problems found, and one check that reports the numbers."""
    text = (
        f"torch uses {threads.torch} thread{'s' * (threads.torch != 1)}; this process may run on {threads.usable} of "
        f"{threads.logical} cores ({threads.physical} of the machine without hyperthreads)"
    )
    if threads.quota is not None:
        text += f", for {threads.quota:g} cores' worth of time"
    return (_number(threads, text), *_affinity(threads), *_spin(threads), *_settings(threads))


def _number(threads: Threads, text: str) -> Check:
    expected = threads.wanted
    allowed = threads.usable if threads.quota is None else min(threads.usable, math.ceil(threads.quota))
    if threads.torch > max(1, allowed):
        text += ": they take turns, and those that wait spin"
    elif threads.torch < expected:
        set_by = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in threads.variables else "torch.set_num_threads"
        text += f": the rest stand idle in every step on the CPU ({set_by})"
    else:
        return check("threads", "threads", text)
    return check("threads", "threads", text, f"export OMP_NUM_THREADS={expected}")


def _affinity(threads: Threads) -> Iterator[Check]:
    if threads.usable == 1 < threads.logical:
        text = f"this process is held to one of {threads.logical} cores: loading and training take turns"
        remedy = "ask the batch system for more cores (--cpus-per-task), or start it without taskset"
        yield check("threads", "affinity", text, remedy)
    if threads.quota is not None and threads.quota < 1:
        text = f"the control group allows {threads.quota:g} of a core"
        remedy = "give the container more: docker run --cpus=4, resources.limits.cpu"
        yield check("threads", "quota", text, remedy)
    if len(threads.openmp) > 1:
        text = f"two OpenMP libraries are loaded, whose threads compete: {', '.join(threads.openmp)}"
        remedy = "install torch, numpy and scipy from one source (all pip, or all conda)"
        yield check("threads", "openmp", text, remedy)


def _spin(threads: Threads) -> Iterator[Check]:
    left = threads.usable - threads.others if threads.others > BUSY else threads.usable
    left = left if threads.quota is None else min(left, threads.quota)
    if threads.torch > 1 and left < threads.torch and not spin_is_chosen(threads.variables):
        text = (
            f"{threads.torch} threads have {left:.1f} cores, and those that wait for the others keep cores busy, some "
            "milliseconds at each of a step's thousand barriers"
        )
        remedy = f"export {spin_text()}, as Hasten's commands do for themselves"
        yield check("threads", "spin", text, remedy)


def _settings(threads: Threads) -> Iterator[Check]:
    for name, (is_harmful, text) in _TRAPS.items():
        value = threads.variables.get(name, "")
        if value and is_harmful(value):
            yield check("threads", name, f"{name}={value}: {text}", f"unset {name}")


def threads_here(others: float = 0.0) -> Threads:
    """The threads of this process, with the variables of a script that it would start. others: cores in use."""
    names, environ = {"OMP_NUM_THREADS", *SPIN_NAMES, *_TRAPS}, environment_of_user()
    return Threads(
        usable=len(allowed_cpus()),
        logical=psutil.cpu_count() or 1,
        physical=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        torch=torch.get_num_threads(),
        quota=cpu_quota(),
        variables={name: environ[name] for name in sorted(names) if environ.get(name)},
        # Copies of one library (a wheel's own libgomp) are one kind; two kinds are what competes.
        openmp=tuple(sorted(set(re.findall(r"/lib(gomp|iomp5|omp)[-.\w]*\.so", text_of(Path("/proc/self/maps")))))),
        others=others,
    )
