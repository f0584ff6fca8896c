"""W&B, offline in RUN/wandb unless WANDB_MODE is set (extra `wandb`); `wandb sync` uploads it."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

from hasten.observe.trackers.tracking import PROJECT, Scalar, Status, TrackedRun

_SETTINGS = {"silent": True, "console": "off", "disable_git": True, "save_code": False, "reinit": "create_new"}
"""Settings for quiet runs that collect nothing but the records; another run of the user's continues."""


class WandbRun:
    """One run of a project."""

    def __init__(self, run: TrackedRun) -> None:
        # Read on import and by W&B's own process. Next to patients' data, no telemetry is sent.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run: Any = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.run_name,
            config=dict(run.config),
            settings=wandb.Settings(**_SETTINGS, x_disable_stats=True, x_disable_meta=True),
        )
        # W&B's own steps must not decrease, and an asynchronous validation comes late.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, scalars: list[Scalar]) -> None:
        for (step, timestamp), record in groupby(scalars, key=lambda scalar: (scalar.step, scalar.time)):
            self._run.log({"step": step, "_timestamp": timestamp} | {scalar.name: scalar.value for scalar in record})

    def end(self, status: Status) -> None:
        self._run.summary.update({"status": status})
        self._run.finish(exit_code=1 if status == "failed" else 0)


begin = WandbRun
