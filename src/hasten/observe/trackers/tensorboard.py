"""TensorBoard's event files in RUN/tensorboard, by its own record writer: `tensorboard --logdir RUNS`."""

from __future__ import annotations

import importlib
import os
import socket
import time
from typing import Any

from hasten.observe.trackers.base import Place, Plain, Scalar, Status

TENSORBOARD = "tensorboard"


def begin(place: Place) -> Events:
    return Events(place)


class Events:
    """One event file per process. A resumed run's file makes the reader discard all events after its first step."""

    def __init__(self, place: Place) -> None:
        folder = place.folder / TENSORBOARD
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}.hasten"
        self._first = place.first
        self._events, self._summaries = _part("compat.proto.event_pb2"), _part("compat.proto.summary_pb2")
        self._records = _part("summary.writer.record_writer").RecordWriter((folder / name).open("wb"))
        self._add(place.first, file_version="brain.Event:2")
        if place.first:
            session_log = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(place.first + 1, session_log=session_log)
        self._settings(place.config)
        self._text("config", place.config)

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            self._value(scalar.step, scalar.time, tag=scalar.name, simple_value=scalar.value)
        # Flush immediately: records come only every few steps, and should be visible at once.
        self._records.flush()

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        self._text("summary", {"status": status} | summary)
        api = _part("plugins.hparams.api_pb2")
        code = api.STATUS_FAILURE if status == "failed" else api.STATUS_SUCCESS
        content = _part("plugins.hparams.plugin_data_pb2")
        end = content.SessionEndInfo(status=code, end_time_secs=time.time())
        self._session("SESSION_END_INFO_TAG", content.HParamsPluginData(session_end_info=end))
        self._records.flush()
        self._records.close()

    def _add(self, step: int, wall_time: float | None = None, **content: Any) -> None:
        event = self._events.Event(step=step, wall_time=time.time() if wall_time is None else wall_time, **content)
        self._records.write(event.SerializeToString())

    def _value(self, step: int, wall_time: float | None = None, **content: Any) -> None:
        value = self._summaries.Summary.Value(**content)
        self._add(step, wall_time, summary=self._summaries.Summary(value=[value]))

    def _text(self, name: str, entries: dict[str, Plain]) -> None:
        """A table in the text view."""
        rows = [f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in entries.items()]
        text = "\n".join(["| name | value |", "|---|---|", *rows])
        self._value(
            self._first,
            tag=f"{name}/text_summary",
            metadata=_part("plugins.text.metadata").create_summary_metadata(display_name="", description=""),
            tensor=_part("util.tensor_util").make_tensor_proto([text.encode()], shape=(1,)),
        )

    def _settings(self, config: dict[str, Plain]) -> None:
        """The hyperparameters for TensorBoard's table, which also shows the last value of every curve."""
        content = _part("plugins.hparams.plugin_data_pb2")
        start = content.SessionStartInfo(start_time_secs=time.time())
        for name, value in config.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        self._session("SESSION_START_INFO_TAG", content.HParamsPluginData(session_start_info=start))

    def _session(self, tag: str, content: Any) -> None:
        metadata = _part("plugins.hparams.metadata")
        self._value(
            self._first,
            tag=getattr(metadata, tag),
            metadata=metadata.create_summary_metadata(content),
            tensor=metadata.NULL_TENSOR,
        )


def _part(name: str) -> Any:
    """A module of TensorBoard, which has no type hints; imported on demand."""
    return importlib.import_module(f"tensorboard.{name}")
