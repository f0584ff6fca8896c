"""What each tracker holds of a run, by its own reader: points by the metric's name, and settings."""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Points = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Held:
    points: Points = field(default_factory=lambda: defaultdict(list))
    """(step, value) of each metric, in the order in which they were written."""
    config: dict[str, Any] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    """Of the tracker's runs that this run's records are in."""


def read_tensorboard(run: Path) -> Held:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    held = Held()
    for tag in events.Tags()["scalars"]:
        held.points[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    text = events.Tensors("config/text_summary")[-1].tensor_proto.string_val[0].decode()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    held.config.update({key: _typed(value) for key, value in rows})
    return held


def read_mlflow(run: Path) -> Held:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent / 'mlflow.db'}")
    held = Held()
    for experiment in client.search_experiments():
        for result in client.search_runs([experiment.experiment_id]):
            held.ids.add(result.info.run_id)
            held.config.update(result.data.params)
            for name in result.data.metrics:
                history = client.get_metric_history(result.info.run_id, name)
                held.points[name] += [(metric.step, metric.value) for metric in history]
    return held


def read_wandb(run: Path) -> Held:
    held = Held()
    files = (run / "wandb").glob("offline-run-*/run-*.wandb")
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        held.ids.add(file.stem.removeprefix("run-"))
        for record in _finished(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                for name, value in row.items():
                    if "/" in name:
                        held.points[name].append((row["step"], value))
            elif kind == "run":
                held.config.update({entry.key: json.loads(entry.value_json) for entry in record.run.config.update})
    return held


def _finished(file: Path) -> list[Any]:
    """W&B's own process may still be writing when a run has ended in ours; its last record is `exit`."""
    for _ in range(600):
        records = _wandb_records(file.read_bytes())
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.05)
    raise AssertionError(f"{file} was never finished")


def _wandb_records(data: bytes) -> list[Any]:
    """Of W&B's transaction log: LevelDB's log format, behind 7 bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    assert data[:4] == b":W&B"
    records, position, whole = [], 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        if position + 7 + length > len(data):
            break  # being written at this moment
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the only piece, or the last
            records.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return records


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


READERS = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}
