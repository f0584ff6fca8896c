"""MLflow: one SQLite file next to the runs, or the server in MLFLOW_TRACKING_URI (extra `mlflow`)."""

from __future__ import annotations

import os
import re
from typing import Any

from hasten.observe.trackers.tracking import PROJECT, Scalar, Status, TrackedRun

MLFLOW_DB = "mlflow.db"
ARTIFACTS = "mlartifacts"
"""Folder next to the database for the files of runs."""
_PARAMS, _LONGEST = 100, 6000
"""MLflow's limits: parameters of one call, and letters of a parameter's value."""
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """One run of an experiment."""

    def __init__(self, run: TrackedRun) -> None:
        # Read on import. Next to patients' data, no telemetry is sent.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder.parent / MLFLOW_DB}"
        self._client: Any = MlflowClient(uri)
        self._run_id = _new_run(self._client, run)
        params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in run.config.items()]
        for first in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _PARAMS])

    def write(self, scalars: list[Scalar]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_key(one.name), one.value, int(1000 * one.time), one.step) for one in scalars]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, status: Status) -> None:
        self._client.set_terminated(self._run_id, status=_STATUS[status])


def _new_run(client: Any, run: TrackedRun) -> str:
    from mlflow.exceptions import MlflowException

    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    # Without it, MLflow would put files into the folder that the command was given in.
    beside = run.folder.parent / ARTIFACTS / re.sub(r"\W", "_", project)
    artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else beside.as_uri()
    try:
        client.create_experiment(project, artifact_location=artifacts)
    except MlflowException:  # it is there already
        if client.get_experiment_by_name(project) is None:
            raise
    created = client.create_run(
        client.get_experiment_by_name(project).experiment_id,
        run_name=run.run_name,
        start_time=int(1000 * run.began),
        tags={"mlflow.source.name": "hasten", "hasten.folder": str(run.folder)},
    )
    run_id: str = created.info.run_id
    return run_id


def _key(name: str) -> str:
    """A name without the letters that MLflow refuses."""
    return re.sub(r"[^/\w.\- ]", "_", name)


begin = MlflowRun
