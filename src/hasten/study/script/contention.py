"""Workers that compete with CPU training for the cores: nothing waits, but every layer is slower."""

from __future__ import annotations

import statistics

from hasten.study.script.records import Record

CLEAR = 1.3
"""Times its own time alone that forward and backward must take beside the workers."""
BUSY_SHARE = 0.3
"""Share of a worker's time in which it computes, below which it takes nothing from anybody."""
_NETWORK = ("autocast", "channels_last", "doubled_batch", "conv_bias")
"""Experiments that time the script's forward and backward with nothing beside them."""
LEAST = 0.3
"""Cores that the script's own workers must take, below which they take nothing from anybody."""


def contended_s(record: Record) -> float:
    """Seconds of a step that workers take from forward and backward, by whichever of two ways sees more of it."""
    return max(_beyond_alone_s(record), _without_core_s(record))


def _without_core_s(record: Record) -> float:
    """Seconds of a step in which the training thread was runnable but had no core because workers used it.

    That is the step's wall time without its waits, less its processor time; beside other programs, the workers' share.
    """
    load, steps = record.listed_dict("load"), record.measured
    workers, others = float(load.get("workers") or 0.0), float(load.get("others") or 0.0)
    if record.on_gpu or record.world > 1 or workers < LEAST or not steps:
        return 0.0
    lost_s = statistics.fmean(
        step["seconds"] - step["parts"].get("wait", 0.0) - (step["cpu"] - step.get("wait_cpu", 0.0)) for step in steps
    )
    # Of others, those that run on these cores: what the training and its workers leave of them.
    training = sum(step["cpu"] for step in steps) / max(sum(step["seconds"] for step in steps), 1e-9)
    others = min(others, max(0.0, float(record.raw.get("cores") or 1) - training - workers))
    return max(0.0, lost_s) * workers / (workers + others)


def _beyond_alone_s(record: Record) -> float:
    """Seconds of a step by which forward and backward are slower than alone, where computing workers explain it."""
    loader = record.experiments.get("workers") or {}
    if record.on_gpu or not loader.get("now") or loader.get("cpu_share", 0.0) < BUSY_SHARE:
        return 0.0
    alone = alone_s(record)
    beside = record.part("forward") + record.part("backward")
    return beside - alone if alone > 0 and beside > CLEAR * alone else 0.0


def alone_s(record: Record) -> float:
    """Seconds of forward and backward alone: the slowest measured, as the script's loss may cost more; 0 if none."""
    results = (record.experiments.get(name) or {} for name in _NETWORK)
    return max((float(one.get("base_s") or 0.0) for one in results), default=0.0)
