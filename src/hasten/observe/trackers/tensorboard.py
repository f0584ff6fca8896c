"""TensorBoard's event files in RUN/tensorboard: `tensorboard --logdir RUNS`."""

from __future__ import annotations

import importlib
import time
from typing import Any

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
        self._begin_session(run.config)
        self._text("config", run.config)

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            self._writer.add_scalar(scalar.name, scalar.value, scalar.step, scalar.time)
        # Flush immediately: records come only every few steps, and should be visible at once.
        self._writer.flush()

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        self._text("summary", {"status": status} | summary)
        code = api_pb2.STATUS_FAILURE if status == "failed" else api_pb2.STATUS_SUCCESS
        end = plugin_data_pb2.SessionEndInfo(status=code, end_time_secs=time.time())
        self._add_session(metadata.SESSION_END_INFO_TAG, session_end_info=end)
        self._writer.close()

    def _text(self, name: str, entries: dict[str, Plain]) -> None:
        """A table in the text view."""
        rows = [f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in entries.items()]
        self._writer.add_text(name, "\n".join(["| name | value |", "|---|---|", *rows]), self._first)

    def _begin_session(self, config: dict[str, Plain]) -> None:
        """The hyperparameters for TensorBoard's table, which also shows the last value of every curve.

        SummaryWriter's own call puts them into a separate run, flags as numbers.
        """
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for name, value in config.items():
            kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(start.hparams[name], kind, value)
        self._add_session(metadata.SESSION_START_INFO_TAG, session_start_info=start)

    def _add_session(self, tag: str, **content: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**content))
        value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
        self._writer.file_writer.add_summary(Summary(value=[value]), self._first)


begin = Events
