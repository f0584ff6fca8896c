"""TensorBoard's event files in RUN/tensorboard: `tensorboard --logdir RUNS`."""

from __future__ import annotations

import importlib

from hasten.observe.trackers.tracking import Scalar, Status, TrackedRun

TENSORBOARD = "tensorboard"


class Events:
    """One event file per process. A resumed run's file makes the reader discard all events after its first step."""

    def __init__(self, run: TrackedRun) -> None:
        # By name, as `hasten.observe` starts without torch.
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        purge_step = run.first + 1 if run.first else None
        self._writer = writer(str(run.folder / TENSORBOARD), purge_step=purge_step, filename_suffix=".hasten")
        rows = [f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in run.config.items()]
        self._writer.add_text("config", "\n".join(["| name | value |", "|---|---|", *rows]), run.first)

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            self._writer.add_scalar(scalar.name, scalar.value, scalar.step, scalar.time)
        # Flush immediately: records come only every few steps, and should be visible at once.
        self._writer.flush()

    def end(self, status: Status) -> None:
        self._writer.close()


begin = Events
