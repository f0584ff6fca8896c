"""What fits into memory: a step of the run, and its prepared cases in each home."""

from __future__ import annotations

import torch

from hasten.cache.memory import available_memory
from hasten.config.size import size_text
from hasten.engine.autotune import example_of
from hasten.engine.precision import autocast
from hasten.nets.random_state import random_state_kept
from hasten.nets.recompute.apply import recompute
from hasten.study.tune.search import Row
from hasten.study.tune.setting import Setting
from hasten.study.tune.space import Room
from hasten.study.tune.stored import StoredMeasurements
from hasten.study.tune.workshop import Workshop

_SAFE = 0.9
_COPIES = 4
"""Of the weights, beside activations: gradients, two moments, the average."""
_STEP_BYTES = "bytes of a step"


def room_of(workshop: Workshop, start: Setting, store: StoredMeasurements) -> Room:
    """Runs the network a few times on one patch, unless an earlier search did."""
    network = workshop.network(True)
    if _STEP_BYTES not in store.facts:
        pieces = -(-workshop.batch_size // workshop.planned.config.train.accumulate)
        with random_state_kept(workshop.device), autocast(workshop.device, str(start["precision"])):
            report = recompute(network, example_of(workshop.planned), 2**62, batch_size=pieces)
        store.keep(_STEP_BYTES, report.before)
    host = available_memory()
    free = torch.cuda.mem_get_info(workshop.device)[0] if workshop.device.type == "cuda" else host
    weights = sum(weight.nbytes for weight in network.parameters())
    arena = workshop.arena(str(start["home"]))
    return Room(
        step=int(store.facts[_STEP_BYTES]),
        free=int(_SAFE * (free - _COPIES * weights)),
        arena=arena.num_bytes,
        home=arena.home,
        host=host // 2,
        device=free // 2 if workshop.device.type == "cuda" else 0,
    )


def fitted(start: Setting, room: Room) -> tuple[Setting, Row | None]:
    """The start, with activations recomputed where a step would not fit otherwise, and the table row for that."""
    if room.fits or start["activations"] != "all":
        return start, None
    budget = max(1, int(_SAFE * room.free) >> 20)
    setting = start.having({"activations": f"{budget}MiB"})
    size, free = size_text(room.step), size_text(room.free)
    why = f"a step holds {size} of activations, and {free} are free: they are recomputed"
    return setting, Row(stage="memory", kind="step", base=start, setting=setting, verdict="won", taken=True, why=why)
