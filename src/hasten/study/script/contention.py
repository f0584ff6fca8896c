"""Workers that take the cores from a training on a CPU: nothing waits, and every layer is slower."""

from __future__ import annotations

import statistics

from hasten.study.script.records import Record

LEAST = 0.3
"""Cores that the script's own workers must take, below which they take nothing from anybody."""


def contended_s(record: Record) -> float:
    """Seconds of a step in which the training's own thread stood ready and had no core, as workers had it.

    That is the step's wall time without its waits, less its processor time; beside other programs, the workers' share.
    """
    load, steps = record.listed_dict("load"), record.measured
    workers, others = float(load.get("workers") or 0.0), float(load.get("others") or 0.0)
    if "cuda" in record.devices or record.world > 1 or workers < LEAST or not steps:
        return 0.0
    lost = statistics.fmean(
        step["seconds"] - step["parts"].get("wait", 0.0) - (step["cpu"] - step.get("wait_cpu", 0.0)) for step in steps
    )
    return max(0.0, lost) * workers / (workers + others)
