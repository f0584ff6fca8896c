"""`Tracking`: sends a run's records to TensorBoard, MLflow and W&B, in addition to metrics.jsonl.

Each has a thread of its own, so that the training never waits for one. TensorBoard's event files lie in
RUN/tensorboard (`tensorboard --logdir RUNS`). MLflow has one SQLite file next to the runs, or the server in
MLFLOW_TRACKING_URI. W&B is offline in RUN/wandb unless WANDB_MODE is set; `wandb sync` uploads it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from hasten.config.url import is_url, shown
from hasten.files import first_line
from hasten.observe.values import integer, number

log = logging.getLogger(__name__)

PROJECT = "hasten"
"""What the trackers file runs under."""
CLOSE_S = 60.0
"""Seconds that the end of a run waits for its trackers, which may still be importing their libraries."""
_NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy"), "wandb": ("wandb",)}
"""Packages by tracker. `mlflow-skinny` brings mlflow without what its database takes."""

Status = Literal["finished", "interrupted", "failed"]
Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of one record."""

    name: str
    """kind/key of the record, such as train/loss or validation/dice_per_class/Anterior."""
    value: float
    """Finite."""
    step: int
    """Steps done when it was taken."""
    time: float
    """Seconds since 1970."""


Batches = Iterable[list[Scalar]]
"""Numbers mostly in the order of their steps: the monitor sends its own from another thread."""
Tracker = Callable[["Tracking", Batches], None]
"""Writes a run's batches, flushing each, as records come only every few steps; its `status` is known behind the last.

It has a thread of its own, which is not the main one, and may take seconds and raise anything.
"""


_PLACES = ("kind", "step", "time", "time_s")
"""Fields of a record that identify it and are not results."""


def scalars_of(record: Mapping[str, Any], *, step: int, time: float) -> list[Scalar]:
    """The finite numbers of a record of metrics.jsonl or the monitor; texts and flags are left out.

    step: of the record if it names none. time: seconds since 1970.
    """
    kind, recorded = str(record.get("kind", "other")), integer(record.get("step"))
    step = step if recorded is None else recorded
    results = {key: value for key, value in record.items() if key not in _PLACES}
    kind = "monitor" if kind == "sample" else kind
    named = ((name, number(value)) for name, value in _leaves(results, kind, "/"))
    return [Scalar(name, value, step, time) for name, value in named if value is not None]


def flat_config(config: Mapping[str, Any]) -> dict[str, Plain]:
    """Settings as `sample.batch_size`, with lists and None as text, and URLs without logins and signatures."""
    flat = {name: _plain(value) for name, value in _leaves(config, "", ".")}
    return {name: shown(value) if isinstance(value, str) and is_url(value) else value for name, value in flat.items()}


def _leaves(value: Any, name: str, between: str) -> Iterator[tuple[str, Any]]:
    """Values with the path to each; the entries of a list of mappings go by their index."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, _join_name(name, str(key), between), between)
    elif isinstance(value, list | tuple) and value and all(isinstance(entry, Mapping) for entry in value):
        for number, entry in enumerate(value):
            rest = {key: item for key, item in entry.items() if key != "index"}
            yield from _leaves(rest, _join_name(name, str(entry.get("index", number)), between), between)
    else:
        yield name, value


def _join_name(name: str, key: str, between: str) -> str:
    # A name is a path to some trackers, so that no key may add to the path or lead out of it.
    key = key.replace("/", "_").strip() or "_"
    key = "_" if key.strip(".") == "" else key
    return f"{name}{between}{key}" if name else key


def _plain(value: Any) -> Plain:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(f"({_plain(entry)})" if isinstance(entry, list | tuple) else f"{entry}" for entry in value)
    return "none" if value is None or value == {} else str(value)


def check_trackers(names: Sequence[str]) -> list[str]:
    """A sentence for each of `names` whose package is missing, with what to do."""
    missing = [name for name in names if not all(map(_is_installed, _NEEDS[name]))]
    return [f"observe.trackers: {name} is not installed; {_install_command(name)}, or leave it out" for name in missing]


def _install_command(name: str) -> str:
    """The command that installs a tracker."""
    return f"pip install {name}" if name == "tensorboard" else f"pip install 'hasten[{name}]'"


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    # W&B leaves a folder `wandb` where it ran, which Python takes for a package without an origin.
    return spec is not None and spec.origin is not None


def _tensorboard(run: Tracking, batches: Batches) -> None:
    """One event file per process. A resumed run's file makes the reader discard all events after its first step."""
    # By name, as `hasten.observe` starts without torch.
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    purge_step = run.first + 1 if run.first else None
    events = writer(str(run.folder / "tensorboard"), purge_step=purge_step, filename_suffix=".hasten")
    rows = [f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in run.config.items()]
    events.add_text("config", "\n".join(["| name | value |", "|---|---|", *rows]), run.first)
    for scalars in batches:
        for scalar in scalars:
            events.add_scalar(scalar.name, scalar.value, scalar.step, scalar.time)
        events.flush()
    events.close()


_PARAMS, _LONGEST = 100, 6000
"""MLflow's limits: parameters of one call, and letters of a parameter's value."""
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def _mlflow(run: Tracking, batches: Batches) -> None:
    """One run of an experiment."""
    # Read on import. Next to patients' data, no telemetry is sent.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder.parent / 'mlflow.db'}")
    run_id = _new_run(client, run)
    params = [Param(_key(name), str(value)[:_LONGEST]) for name, value in run.config.items()]
    for first in range(0, len(params), _PARAMS):
        client.log_batch(run_id, params=params[first : first + _PARAMS])
    for scalars in batches:
        metrics = [Metric(_key(one.name), one.value, int(1000 * one.time), one.step) for one in scalars]
        client.log_batch(run_id, metrics=metrics)
    client.set_terminated(run_id, status=_STATUS[run.status])


def _new_run(client: Any, run: Tracking) -> str:
    from mlflow.exceptions import MlflowException

    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    # Without it, MLflow would put files into the folder that the command was given in.
    beside = run.folder.parent / "mlartifacts" / re.sub(r"\W", "_", project)
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
    return created.info.run_id


def _key(name: str) -> str:
    """A name without the letters that MLflow refuses."""
    return re.sub(r"[^/\w.\- ]", "_", name)


_SETTINGS = {"silent": True, "console": "off", "disable_git": True, "save_code": False, "reinit": "create_new"}
"""Settings for quiet runs that collect nothing but the records; another run of the user's continues."""


def _wandb(run: Tracking, batches: Batches) -> None:
    """One run of a project."""
    # Read on import and by W&B's own process. Next to patients' data, no telemetry is sent.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    tracked: Any = wandb.init(
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        dir=os.environ.get("WANDB_DIR") or str(run.folder),
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.run_name,
        config=dict(run.config),
        settings=wandb.Settings(**_SETTINGS, x_disable_stats=True, x_disable_meta=True),
    )
    # W&B's own steps must not decrease, and a record of the monitor may come late.
    tracked.define_metric("step", hidden=True)
    tracked.define_metric("*", step_metric="step")
    for scalars in batches:
        for (step, timestamp), record in groupby(scalars, key=lambda scalar: (scalar.step, scalar.time)):
            tracked.log({"step": step, "_timestamp": timestamp} | {scalar.name: scalar.value for scalar in record})
    tracked.summary.update({"status": run.status})
    tracked.finish(exit_code=1 if run.status == "failed" else 0)


TRACKERS: dict[str, Tracker] = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}


class Worker(threading.Thread):
    """Feeds the tracker `tracker` with what is put into `batches`; None ends it."""

    def __init__(self, tracker: str, run: Tracking) -> None:
        super().__init__(name=f"hasten-{tracker}", daemon=True)
        self.tracker, self.tracked = tracker, run
        self.batches: queue.SimpleQueue[list[Scalar] | None] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            TRACKERS[self.tracker](self.tracked, iter(self.batches.get, None))
        # A library may also call sys.exit; no failure of a tracker may end the run or be reported twice.
        except (Exception, SystemExit) as error:
            cure = f"; {_install_command(self.tracker)}" if isinstance(error, ImportError) else ""
            log.warning("%s: the run is not tracked there any further (%s)%s", self.tracker, first_line(error), cure)


class Tracking:
    """Sends each `log`ged record to every tracker of `names`; a context manager around the training.

    A tracker starts up (imports included), writes and ends in its own thread. One that is not installed or fails
    is reported once, as a warning, and left out from then on: the run continues, and metrics.jsonl has all values.
    Under several ranks only rank 0 (of the environment's RANK) tracks.

    folder: the run directory. run_name: what a tracker shows it as. config: the settings, nested. first: steps done
    by the processes before this one, 0 if the run is not resumed.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        *,
        run_name: str,
        config: Mapping[str, Any],
        first: int = 0,
    ) -> None:
        self.folder, self.began, self.config = Path(folder).absolute(), time.time(), flat_config(config)
        self.run_name = f"{run_name} from step {first}" if first else run_name  # another run for the trackers
        self.first = first
        """What a killed process sent of later steps is void."""
        self.status: Status = "finished"
        is_first_rank = os.environ.get("RANK", "0") in ("", "0")
        self._workers = [Worker(name, self) for name in dict.fromkeys(names)] if is_first_rank else []
        self._step = first
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def log(self, record: Mapping[str, Any]) -> None:
        """Send a record as metrics.jsonl or the monitor holds it, from any thread; returns at once and never raises.

        One without a step gets that of the last record that had one.
        """
        # A forked child has the queues and not the threads that empty them.
        if not self._workers or self._closed or os.getpid() != self._process:
            return
        try:
            scalars = scalars_of(record, step=self._step, time=time.time())
        except (TypeError, ValueError, OverflowError) as error:
            log.warning("trackers: a record is left out (%s)", error)
            return
        if scalars:
            self._step = max(self._step, scalars[0].step)
            for worker in self._workers:
                if worker.is_alive():
                    worker.batches.put(scalars)

    def close(self, status: Status = "finished") -> None:
        """End every tracker, waiting at most `CLOSE_S`. Safe to call twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed, self.status = True, status
        until = time.monotonic() + CLOSE_S
        for worker in self._workers:
            worker.batches.put(None)
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                log.warning("%s: did not finish in time; its last records may be missing there", worker.tracker)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
