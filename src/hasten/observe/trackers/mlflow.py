"""MLflow: one SQLite file next to the runs, or the server in MLFLOW_TRACKING_URI (extra `mlflow`)."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from hasten.config.url import shown
from hasten.observe.rundir import ENV_JSON, METRICS_JSONL, PLAN_JSON, RUN_YAML, SUMMARY_JSON
from hasten.observe.trackers.base import Plain, Scalar, Status, TrackedRun

MLFLOW_DB = "mlflow.db"
ARTIFACTS = "mlartifacts"
"""Folder next to the database for the files of runs."""

_FILES = (RUN_YAML, PLAN_JSON, ENV_JSON, METRICS_JSONL, SUMMARY_JSON)
_SQLITE = "sqlite:///"
_LOCKED_S = 20.0
"""Seconds to wait for another run that writes to the database."""
_METRICS, _PARAMS = 1000, 100
"""MLflow's limits of one call."""
_LONGEST = 6000
"""Letters of a parameter's value."""
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def tracking_uri(folder: Path) -> str:
    """The tracking URI for the run directory `folder`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{folder.parent / MLFLOW_DB}"


class MlflowRun:
    """One run of the experiment `project`, with which a resumed run continues. Logged values cannot be removed."""

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.folder
        uri = tracking_uri(run.folder)
        self._client = _client(uri)
        self._run_id = _known_run(self._client, run, uri)
        if self._run_id is None:
            self._run_id = _new_run(self._client, run)
            run.ids.put("mlflow", {"tracking_uri": uri, "run_id": self._run_id})
            self._params(run.config)

    def write(self, scalars: list[Scalar]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_key(one.name), one.value, int(1000 * one.time), one.step) for one in scalars]
        for first in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _METRICS])

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        for name, value in summary.items():
            if isinstance(value, int | float):
                self._client.log_metric(self._run_id, _key(f"summary/{name}"), float(value))
            else:
                self._client.set_tag(self._run_id, _key(f"summary/{name}"), value)
        for name in _FILES:
            if (self._folder / name).is_file():
                _log_file(self._client, self._run_id, self._folder / name)
        self._client.set_terminated(self._run_id, status=_STATUS[status])

    def _params(self, config: dict[str, Plain]) -> None:
        from mlflow.entities import Param

        params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in config.items()]
        for first in range(0, len(params), _PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _PARAMS])


def _client(uri: str) -> Any:
    if uri.startswith(_SQLITE):
        _require_database(uri.removeprefix(_SQLITE))
    # Read on import. Next to patients' data, no telemetry is sent.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def _require_database(path: str) -> None:
    """Raise sqlite3.Error for a file that can't be a database to write to: MLflow would try it again for minutes."""
    with closing(sqlite3.connect(path, timeout=_LOCKED_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.rollback()


def _known_run(client: Any, run: TrackedRun, uri: str) -> str | None:
    """The id under which an earlier process of the run began it there; None if there is none, or it was deleted."""
    from mlflow.exceptions import MlflowException

    saved = run.ids.get("mlflow")
    run_id = saved.get("run_id")
    if run_id is None or saved.get("tracking_uri") != uri:
        return None
    try:
        if client.get_run(run_id).info.lifecycle_stage != "active":
            return None
        client.update_run(run_id, status="RUNNING")
    except MlflowException:
        return None
    return run_id


def _new_run(client: Any, run: TrackedRun) -> str:
    from mlflow.exceptions import MlflowException

    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.project)
    if client.get_experiment_by_name(project) is None:
        # Without it, MLflow would put files into the folder that the command was given in.
        beside = run.folder.parent / ARTIFACTS / re.sub(r"\W", "_", project)
        artifacts = None if os.environ.get("MLFLOW_TRACKING_URI") else beside.as_uri()
        try:
            client.create_experiment(project, artifact_location=artifacts)
        except MlflowException:
            # Another run that begins at the same time was first.
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


def _log_file(client: Any, run_id: str | None, file: Path) -> None:
    """A text file as it is, but for the logins and signatures of URLs, which a server has no need to know."""
    text = file.read_text(encoding="utf-8")
    client.log_text(run_id, shown(text) if "://" in text else text, file.name)


def _key(name: str) -> str:
    """A name without the letters that MLflow refuses."""
    return re.sub(r"[^/\w.\- ]", "_", name)


begin = MlflowRun
