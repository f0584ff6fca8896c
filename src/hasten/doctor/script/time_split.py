"""The wall time of a watched script, by part, and on a CPU how much workers that compete for cores took."""

from __future__ import annotations

import statistics

from hasten.doctor.script.findings.experiments import step_of, wall_s
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.time_split import PARTS, Split

_RARE, _NETWORK_ALONE = ("validation", "checkpoint"), ("autocast", "channels_last", "doubled_batch")
LEAST = 0.3
"""Cores that the script's workers must use, below which they don't slow anything down."""


def split_of(record: ProcessRecord) -> Split:
    """Means over the measured steps of one process, rank 0's usually.

    On a GPU the parts come from the synchronized steps, scaled to the time of the others.
    """
    measured = record.measured
    free = [step for step in measured if not step.get("synced")] or measured
    watched = [step for step in measured if step.get("synced")] or measured
    step_s = statistics.fmean(step["seconds"] for step in free) if free else 0.0
    names = {name for step in watched for name in step["parts"]}
    parts = {name: statistics.fmean(step["parts"].get(name, 0.0) for step in watched) for name in names}
    total = sum(parts.values())
    if total > 0:
        parts = {name: seconds * step_s / total for name, seconds in parts.items()}
    parts = _shared_with_workers(record, _waiting_for_ranks(record, _named(record, parts)))
    step, gain = step_of(record), (record.experiments.get("doubled_batch") or {}).get("gain")
    return Split(
        steps=len(measured),
        step_s=step_s,
        parts={name: parts[name] for name in PARTS if parts.get(name, 0.0) > 0},
        # The experiment gives the gain in samples a second.
        doubled=2 / gain if gain else None,
        on_cpu=not record.on_gpu,
        feed_alone_s=step.batch_s if step is not None else None,
    )


def _named(record: ProcessRecord, parts: dict[str, float]) -> dict[str, float]:
    """Rename parts that the probe can't distinguish by itself."""
    renamed = dict(parts)
    before = "sample" if record.training_loaders else "overhead"
    if not renamed.get("forward"):
        # A compiled function hides the network: what lies between batch and backward is its forward pass.
        renamed["forward"] = renamed.pop(before, 0.0)
    elif not record.training_loaders:
        # Without a DataLoader the script makes its batches between the steps.
        renamed["prepare"] = renamed.pop("overhead", 0.0)
    return renamed


def _waiting_for_ranks(record: ProcessRecord, parts: dict[str, float]) -> dict[str, float]:
    """Count the idle time of backward's thread, with several ranks on CPUs, as waiting for other ranks."""
    if record.world < 2 or record.on_gpu or not record.measured:
        return parts
    backward = parts.get("backward", 0.0)
    waits = (step.get("backward_wall", 0.0) - step.get("backward", 0.0) for step in record.measured)
    idle = min(statistics.fmean(max(0.0, wait) for wait in waits), backward)
    return parts | {"backward": backward - idle, "gradient_sync": parts.get("gradient_sync", 0.0) + idle}


def _shared_with_workers(record: ProcessRecord, parts: dict[str, float]) -> dict[str, float]:
    """Attribute, on a CPU, the time by which workers slow the network down to the making of items."""
    lost_s, both = contended_s(record), parts.get("forward", 0.0) + parts.get("backward", 0.0)
    lost_s = min(lost_s, 0.98 * both)
    if lost_s <= 0:
        return parts
    scale = 1 - lost_s / both
    slowed = {name: scale * parts.get(name, 0.0) for name in ("forward", "backward")}
    return parts | slowed | {"sample": parts.get("sample", 0.0) + lost_s}


def contended_s(record: ProcessRecord) -> float:
    """Seconds of a step by which workers that use its cores lengthen it, at most as long as they compute.

    Of one thread that is the step's wall time without its waits, less its processor time; other programs take their
    share of it. Several threads spin while they lack a core: what the network takes alone, in the experiments, tells.
    Steps with a validation or a checkpoint, which wait for batches of their own and for disks, do not count.
    """
    load, cores, threads = record.listed_dict("load"), int(record.raw.get("cores") or 1), record.raw.get("threads") or 1
    steps = [one for one in record.measured if sum(one["parts"].get(name, 0) for name in _RARE) < 0.01 * one["seconds"]]
    workers, others = float(load.get("workers") or 0.0), float(load.get("others") or 0.0)
    most = max([workers, *(loader.get("num_workers") or 0 for loader in record.listed("loaders"))])
    if record.on_gpu or record.world > 1 or workers < LEAST or not steps or threads + most <= cores:
        return 0.0
    lost_s = statistics.fmean(
        step["seconds"] - step["parts"].get("wait", 0.0) - (step["cpu"] - step.get("wait_cpu", 0.0)) for step in steps
    )
    # Other programs can only use the cores that the training and its workers leave.
    training = sum(step["cpu"] for step in steps) / max(sum(step["seconds"] for step in steps), 1e-9)
    others = min(others, max(0.0, cores - training - workers))
    longer_s, arms = 0.0, [record.experiments.get(name) or {} for name in _NETWORK_ALONE]
    alone = [wall_s(arm) for arm in arms if "base_s" in arm]
    if alone and len(record.listed("roots")) == 1:
        calls = max(1.0, sum(record.listed_dict("shapes").values()) / record.steps)
        longer_s = record.part("forward") + record.part("backward") - calls * max(alone)
    return min(workers * record.step_s, max(0.0, lost_s * workers / (workers + others), longer_s))
