"""Fault injection, to test that a job survives failures: HASTEN_FAULT="kind@rank:step[,...]"."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from hasten.distribute.world import World

VARIABLE = "HASTEN_FAULT"
Kind = Literal["kill", "hang", "oom", "sigterm", "error"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is injected into a rank after the step of this number, once per job."""

    kind: Kind
    rank: int
    step: int


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of "kind@rank:step[,...]". Raises ValueError naming an invalid part."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(rf"({'|'.join(KINDS)})@(\d+):(\d+)", part)
        if match is None:
            raise ValueError(f"{VARIABLE}={text}: {part!r} is not kind@rank:step with a kind of {', '.join(KINDS)}")
        faults.append(Fault(cast("Kind", match[1]), int(match[2]), int(match[3])))
    return tuple(faults)


def faults_of(world: World, where: Path) -> Callable[[int], None] | None:
    """What to call with the number of each finished step, or None if no fault is set for this rank.

    where: folder that survives a restart, where each injected fault is recorded, so that it happens once.
    """
    rank_faults = tuple(fault for fault in read_faults(os.environ.get(VARIABLE, "")) if fault.rank == world.rank)
    if not rank_faults:
        return None

    def at(step: int) -> None:
        for fault in rank_faults:
            if fault.step == step:
                where.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    (where / f"fault-{fault.kind}-{fault.rank}-{fault.step}").touch(exist_ok=False)
                    _inject(fault.kind, step)

    return at


def _inject(kind: Kind, step: int) -> None:
    match kind:
        case "kill" | "sigterm":
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        case "hang":
            while True:
                time.sleep(3600)
        case "error":
            raise RuntimeError(f"error injected after step {step} by {VARIABLE}")
        case "oom":
            raise MemoryError(f"can't allocate memory: injected after step {step} by {VARIABLE}")
