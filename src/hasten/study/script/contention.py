"""Workers that take the cores from a training on a CPU: nothing waits, and every layer is slower."""

from __future__ import annotations

from hasten.study.script.records import Record

CLEAR = 1.3
"""Times its own time alone that forward and backward must take beside the workers."""
BUSY_SHARE = 0.3
"""Share of a worker's time in which it computes, below which it takes nothing from anybody."""
_NETWORK = ("autocast", "channels_last", "doubled_batch", "conv_bias")
"""Experiments that time the script's forward and backward with nothing beside them."""


def contended_s(record: Record) -> float:
    """Seconds of a step by which forward and backward are slower than alone, where computing workers explain it."""
    loader = record.experiments.get("workers") or {}
    if "cuda" in record.devices or not loader.get("now") or loader.get("cpu_share", 0.0) < BUSY_SHARE:
        return 0.0
    alone = alone_s(record)
    beside = record.part("forward") + record.part("backward")
    return beside - alone if alone > 0 and beside > CLEAR * alone else 0.0


def alone_s(record: Record) -> float:
    """Seconds of forward and backward alone: the slowest measured, as the script's loss may cost more; 0 if none."""
    tried = (record.experiments.get(name) or {} for name in _NETWORK)
    return max((float(one.get("base_s") or 0.0) for one in tried), default=0.0)
