"""What fits into memory, and what is tried for a run on a device, in which order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hasten.cache.memory import available_memory
from hasten.config.schema import RunConfig
from hasten.config.size import size_text
from hasten.engine.autotune import example_of
from hasten.engine.infer import WINDOW_BATCH
from hasten.engine.precision import autocast
from hasten.engine.run_plan import RunPlan
from hasten.nets.random_state import random_state_kept
from hasten.nets.recompute.apply import recompute
from hasten.observe.cores import usable_cores
from hasten.study.tune.arm_builder import ArmBuilder
from hasten.study.tune.search import ArmResult, SearchRow, SearchStage, Space
from hasten.study.tune.setting import Changes, Setting, changes_text
from hasten.study.tune.stored import StoredMeasurements

FEED, BATCH, VALIDATION = "cache home and batch program", "batch size", "sliding window"
_BATCH_LEAST = 0.15
_SAFE = 0.9
_COPIES = 4
"""Copies of the weights, beside activations: gradients, two moments, the average."""
_STEP_BYTES = "bytes of a step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What fits where, in bytes."""

    step: int
    """Activations that a step of the run's batch holds."""
    free: int
    """What such a step may hold."""
    arena: int
    home: str
    """Home in which the run's prepared cases actually are."""
    host: int
    """Host memory that prepared cases may take."""
    device: int
    """Memory of the GPU that prepared cases may take; 0 without one."""

    @property
    def fits(self) -> bool:
        return self.step <= self.free


def room_of(builder: ArmBuilder, start: Setting, store: StoredMeasurements) -> Room:
    """Runs the network a few times on one patch, unless an earlier search did."""
    network = builder.network(True)
    if _STEP_BYTES not in store.facts:
        pieces = -(-builder.batch_size // builder.planned.config.train.accumulate)
        with random_state_kept(builder.device), autocast(builder.device, str(start["precision"])):
            report = recompute(network, example_of(builder.planned), 2**62, batch_size=pieces)
        store.keep(_STEP_BYTES, report.before)
    host = available_memory()
    free = torch.cuda.mem_get_info(builder.device)[0] if builder.device.type == "cuda" else host
    weights = sum(weight.nbytes for weight in network.parameters())
    arena = builder.arena(str(start["home"]))
    return Room(
        step=int(store.facts[_STEP_BYTES]),
        free=int(_SAFE * (free - _COPIES * weights)),
        arena=arena.num_bytes,
        home=arena.home,
        host=host // 2,
        device=free // 2 if builder.device.type == "cuda" else 0,
    )


def fit_memory(start: Setting, room: Room) -> tuple[Setting, SearchRow | None]:
    """The start, with activations recomputed where a step would not fit otherwise, and the table row for that."""
    if room.fits or start["activations"] != "all":
        return start, None
    budget = max(1, int(_SAFE * room.free) >> 20)
    setting = start.having({"activations": f"{budget}MiB"})
    size, free = size_text(room.step), size_text(room.free)
    why = f"a step holds {size} of activations, and {free} are free: they are recomputed"
    return setting, SearchRow(
        stage="memory", kind="step", base=start, setting=setting, verdict="won", taken=True, why=why
    )


def start_of(planned: RunPlan) -> Setting:
    """The run as configured; what that leaves to be measured is float32, contiguous and not compiled."""
    config = planned.config
    train, sample, infer = config.train, config.sample, config.infer
    compiled = "whole" if train.compile else "off"
    return Setting.of(
        {
            "precision": train.precision or "fp32",
            "channels_last": bool(train.channels_last),
            "compile": compiled,
            "inductor": "default",
            "capture": bool(train.capture),
            "activations": train.activations,
            "home": config.cache.home,
            "batch_program": bool(sample.compile),
            "batch_size": sample.batch_size,
            "ring_depth": 2,
            "threads": torch.get_num_threads(),
            "norm_fusion": True,
            "optimizer": "fused",
            "infer_batch": infer.batch_size or WINDOW_BATCH,
        }
    )


def space_of(planned: RunPlan, start: Setting, room: Room, *, larger_batch: bool = False) -> Space:
    """Stages from what matters most; those after the sliding window have no setting of a run, and are only reported.

    larger_batch: whether another batch size may be taken instead of only reported.
    """
    cuda = planned.device.type == "cuda"
    batch = _batch(planned.config, start, room, takes=larger_batch)
    stages = [
        _grid(cuda=cuda),
        _feed(start, room, cuda=cuda),
        *(
            [SearchStage(name="CUDA graph", kind="run", changes=({"capture": True}, {"capture": False}))]
            if cuda
            else []
        ),
        *(batch if larger_batch else []),
        _validation(start, cuda=cuda),
        *([] if larger_batch else batch),
        *_advice_stages(planned.config, start, room, cuda=cuda),
    ]
    return Space(start=start, stages=tuple(stages))


def _grid(*, cuda: bool) -> SearchStage:
    precisions = ("fp32", "tf32", "bf16", "fp16") if cuda else ("fp32", "bf16")
    pairs = itertools.product(precisions, (False, True))
    return SearchStage(
        name="precision, memory format, compiling",
        kind="step",
        changes=tuple({"precision": one, "channels_last": last, "compile": "off"} for one, last in pairs),
        beside=({"compile": "whole"},),
        reach=2.0 if cuda else 1.5,
        weight=6.0,
    )


def _feed(start: Setting, room: Room, *, cuda: bool) -> SearchStage:
    homes = ["file"]
    if room.arena <= room.host:
        homes.append("ram")
    if cuda and room.arena <= room.device:
        homes.append("device")
    changes: list[Changes] = [{"home": home} for home in homes if home not in (start["home"], room.home)]
    changes.append({"batch_program": not start["batch_program"]})
    if cuda:
        changes += [{"home": home, "batch_program": True} for home in homes]
    return SearchStage(name=FEED, kind="run", changes=tuple(changes), weight=2.0)


def _batch(config: RunConfig, start: Setting, room: Room, *, takes: bool) -> list[SearchStage]:
    """A batch of another size changes the training: at most a large gain is taken, with the learning rate scaled."""
    size = int(start["batch_size"])
    if config.sample.stages or config.sample.fit_batch:
        return []
    sizes = [*(size * by for by in (2, 4) if room.step * by <= room.free), size // 2]
    changes = tuple({"batch_size": each} for each in sizes if each >= max(1, config.train.accumulate))
    return [SearchStage(name=BATCH, kind="step", changes=changes, least=_BATCH_LEAST, takes=takes)] if changes else []


def _validation(start: Setting, *, cuda: bool) -> SearchStage:
    size = int(start["infer_batch"])
    changes: list[Changes] = [{"infer_batch": each} for each in dict.fromkeys((max(1, size // 2), 2 * size, 4 * size))]
    return SearchStage(name=VALIDATION, kind="validate", changes=tuple(changes))


def _advice_stages(config: RunConfig, start: Setting, room: Room, *, cuda: bool) -> list[SearchStage]:
    """Stages that a run's settings can't express, or that only cost time here."""
    unfused: tuple[Changes, ...] = ({"norm_fusion": False}, {"norm_fusion": False, "compile": "whole"})
    stages = [SearchStage(name="without norm fusion", kind="step", changes=unfused, takes=False)]
    if config.train.optimizer in ("adamw", "sgd") and not config.train.lookahead:  # the others have one form only
        stages.append(
            SearchStage(name="unfused optimizer", kind="update", changes=({"optimizer": "loop"},), takes=False)
        )
    if cuda:
        modes = [{"compile": "whole", "inductor": mode} for mode in ("max-autotune", "reduce-overhead")]
        stages.append(SearchStage(name="modes of the compiler", kind="step", changes=tuple(modes), takes=False))
        depths = tuple({"ring_depth": depth} for depth in (1, 4))
        stages.append(SearchStage(name="slots between host and device", kind="run", changes=depths, takes=False))
    else:
        cores = usable_cores()
        counts = tuple({"threads": count} for count in sorted({1, max(1, cores // 2), cores}))
        stages.insert(0, SearchStage(name="threads", kind="step", changes=counts, takes=False))
    if start["activations"] == "all":
        recompute = ({"activations": f"{max(1, room.step // 2 >> 20)}MiB"},)
        stages.append(SearchStage(name="activation checkpointing", kind="step", changes=recompute, takes=False))
    return stages


def pays_within(steps: int) -> Callable[[Setting, Setting, ArmResult], str | None]:
    """Compare what compiling saves over a run of `steps` steps with its one-time cost."""

    def against(base: Setting, arm: Setting, measured: ArmResult) -> str | None:
        compiles = arm["compile"] != "off" or bool(arm["batch_program"])
        if not compiles or not measured.once or measured.seconds is None or measured.base_seconds is None:
            return None
        saved_s = steps * (measured.base_seconds - measured.seconds)
        # `hasten train` compiles twice: a copy to check its numbers, then the network itself.
        cost = 2 * measured.once
        if saved_s > cost:
            return None
        return f"{steps} steps would save {saved_s:.0f} s, and compiling costs a run about {cost:.0f} s"

    return against


def advice(changes: Changes) -> str:
    """Advice on changes that no setting of a run expresses."""
    if "batch_size" in changes:
        return (
            f"patches a second with sample.batch_size={changes['batch_size']}, but fewer steps, so that the result may "
            "be another; --larger-batch takes it, with the learning rate scaled: compare the Dice"
        )
    if "threads" in changes:
        return f"start it as OMP_NUM_THREADS={changes['threads']} hasten train ..."
    return f"there is no setting of a run for {changes_text(changes)}"
