"""Faults at chosen steps, which a job has to survive: HASTEN_FAULT="kind@rank:step[,...]"."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hasten.distribute.launch.watchdog import Watchdog
from hasten.distribute.world import World, detect_world

VARIABLE = "HASTEN_FAULT"
KINDS = ("kill", "hang", "oom", "sigterm", "error")


def faults_of(world: World, where: Path) -> Callable[[int], None] | None:
    """What to call with the number of each finished step, or None if no fault is set for this rank.

    where: folder that survives a restart, where each injected fault is recorded, so that it happens once. Raises
    ValueError naming what is no fault.
    """
    text, rank_faults = os.environ.get(VARIABLE, ""), []
    for part in filter(None, map(str.strip, text.split(","))):
        match = re.fullmatch(rf"({'|'.join(KINDS)})@(\d+):(\d+)", part)
        if match is None:
            raise ValueError(f"{VARIABLE}={text}: {part!r} is not kind@rank:step with a kind of {', '.join(KINDS)}")
        if int(match[2]) == world.rank:
            rank_faults.append((match[1], int(match[3])))
    if not rank_faults:
        return None

    def at(step: int) -> None:
        for kind, after in rank_faults:
            if after == step:
                where.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    (where / f"fault-{kind}-{world.rank}-{step}").touch(exist_ok=False)
                    _inject(kind, step)

    return at


def install() -> None:
    """Have the faults befall the trainings of this process: after each step, of which its watchdog is told."""
    beat = Watchdog.beat

    def befallen(dog: Watchdog, step: int) -> None:
        befall = faults_of(detect_world(), dog.where)
        if befall is not None:
            befall(step)
        beat(dog, step)

    Watchdog.beat = befallen  # type: ignore[method-assign]


def _inject(kind: str, step: int) -> None:
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
