"""Fault injection, to test that a job survives failures: HASTEN_FAULT="kind@rank:step[,...]"."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from hasten.distribute.world import World

VARIABLE = "HASTEN_FAULT"
Kind = Literal["kill", "stop", "hang", "oom", "sigterm", "error"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_ROOM = 1 << 28
"""Bytes that a process may still take before an `oom` asks for more."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is injected into a rank after the step of this number, once per job."""

    kind: Kind
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.rank}:{self.step}"


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of "kind@rank:step[,...]". Raises ValueError naming an invalid part."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, place = part.partition("@")
        rank, _, step = place.partition(":")
        known = next((known for known in KINDS if known == kind), None)
        if known is None or not rank.isdigit() or not step.isdigit():
            raise ValueError(f"{VARIABLE}={text}: {part!r} is not kind@rank:step with a kind of {', '.join(KINDS)}")
        faults.append(Fault(known, int(rank), int(step)))
    return tuple(faults)


def faults_of(world: World, where: Path, environment: Mapping[str, str] | None = None) -> Callable[[int], None] | None:
    """What to call with the number of each finished step, or None where no fault is to befall this rank.

    where: folder that outlives a restart, in which a fault that has happened is noted, so that it happens once.
    """
    variables = os.environ if environment is None else environment
    rank_faults = tuple(fault for fault in read_faults(variables.get(VARIABLE, "")) if fault.rank == world.rank)
    if not rank_faults:
        return None

    def at(step: int) -> None:
        for fault in rank_faults:
            if fault.step == step and _first_time(fault, where):
                _befall(fault.kind, step)

    return at


def noted(fault: Fault, where: Path) -> Path:
    """The empty file that marks a fault as injected."""
    return where / f"fault-{fault.kind}-{fault.rank}-{fault.step}"


def _first_time(fault: Fault, where: Path) -> bool:
    where.mkdir(parents=True, exist_ok=True)
    try:
        noted(fault, where).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _befall(kind: Kind, step: int) -> None:
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        case "hang":
            while True:
                time.sleep(3600)
        case "error":
            raise RuntimeError(f"put in after step {step} by {VARIABLE}")
        case "oom":
            _run_out_of_memory()


def _run_out_of_memory() -> None:
    """Ask the system for more than it may give, so that the error is the real one."""
    if torch.cuda.is_available():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    blocks = []
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, hard))
    try:
        while True:
            blocks.append(torch.empty(_ROOM, dtype=torch.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
