"""MLflow: one SQLite file next to the runs, or the server in MLFLOW_TRACKING_URI (extra `mlflow`)."""

from __future__ import annotations

import os
import re
from typing import Any

from hasten.observe.trackers.base import Plain, Scalar, Status, TrackedRun

MLFLOW_DB = "mlflow.db"
ARTIFACTS = "mlartifacts"
"""Folder next to the database for the files of runs."""
_PARAMS, _LONGEST = 100, 6000
"""MLflow's limits: parameters of one call, and letters of a parameter's value."""
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """One run of the experiment `project`, with which a resumed run continues. Logged values cannot be removed."""

    def __init__(self, run: TrackedRun) -> None:
        # Read on import. Next to patients' data, no telemetry is sent.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder.parent / MLFLOW_DB}"
        self._client: Any = MlflowClient(uri)
        self._run_id = _known_run(self._client, run, uri)
        if self._run_id is None:
            self._run_id = _new_run(self._client, run)
            run.ids.put("mlflow", {"tracking_uri": uri, "run_id": self._run_id})
            params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in run.config.items()]
            for first in range(0, len(params), _PARAMS):
                self._client.log_batch(self._run_id, params=params[first : first + _PARAMS])

    def write(self, scalars: list[Scalar]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_key(one.name), one.value, int(1000 * one.time), one.step) for one in scalars]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        for name, value in summary.items():
            if isinstance(value, int | float):
                self._client.log_metric(self._run_id, _key(f"summary/{name}"), float(value))
            else:
                self._client.set_tag(self._run_id, _key(f"summary/{name}"), value)
        self._client.set_terminated(self._run_id, status=_STATUS[status])


def _known_run(client: Any, run: TrackedRun, uri: str) -> str | None:
    """The id under which an earlier process of the run began it there; None if there is none, or it was deleted."""
    from mlflow.exceptions import MlflowException

    saved = run.ids.get("mlflow")
    run_id = saved.get("run_id")
    if run_id is None or saved.get("tracking_uri") != uri:
        return None
    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException:
        return None
    return run_id


def _new_run(client: Any, run: TrackedRun) -> str:
    from mlflow.exceptions import MlflowException

    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.project)
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
