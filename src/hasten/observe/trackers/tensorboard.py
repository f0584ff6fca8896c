"""TensorBoard's event files in RUN/tensorboard: `tensorboard --logdir RUNS`."""

from __future__ import annotations

import importlib

from hasten.observe.trackers.base import Plain, Scalar, Status, TrackedRun

TENSORBOARD = "tensorboard"


class Events:
    """One event file per process. A resumed run's file makes the reader discard all events after its first step."""

    def __init__(self, run: TrackedRun) -> None:
        # By name, as `hasten.observe` starts without torch.
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        purge_step = run.first + 1 if run.first else None
        self._writer = writer(str(run.folder / TENSORBOARD), purge_step=purge_step, filename_suffix=".hasten")
        self._first = run.first
        self._text("config", run.config)

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            self._writer.add_scalar(scalar.name, scalar.value, scalar.step, scalar.time)
        # Flush immediately: records come only every few steps, and should be visible at once.
        self._writer.flush()

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        self._text("summary", {"status": status} | summary)
        self._writer.close()

    def _text(self, name: str, entries: dict[str, Plain]) -> None:
        """A table in the text view."""
        rows = [f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in entries.items()]
        self._writer.add_text(name, "\n".join(["| name | value |", "|---|---|", *rows]), self._first)


begin = Events
