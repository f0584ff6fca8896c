"""`monitor.jsonl` of each rank: what the monitor recorded of the machine while the run trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hasten.observe.monitor.alerts import Alert, alerts_of_ranks
from hasten.observe.monitor.recording import History, MonitorRecording, merged, recordings
from hasten.observe.monitor.sample import Sample

_MAX_SAMPLES = 20_000
"""Samples per rank in memory: five hours at one per second; of a longer run every second one, every fourth, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The recordings of all ranks; a rank without samples is left out, and there is at least one."""

    ranks: dict[int, tuple[Sample, ...]]
    """In the order of time, by rank."""
    alerts: tuple[Alert, ...]
    remarks: tuple[str, ...]
    """The monitor's notes on itself, such as that there is no driver."""


def read_monitor(folder: Path, notes: list[str]) -> Machine | None:
    """The content of the run directory's monitor files; None if there are none. Unreadable lines become a note."""
    loaded: list[MonitorRecording] = []
    for rank, path in recordings(folder).items():
        recording = MonitorRecording(path, rank, history=History(_MAX_SAMPLES, recent=0))
        recording.poll(is_last=True)
        if recording.damaged:
            lines = "1 line" if recording.damaged == 1 else f"{recording.damaged} lines"
            notes.append(f"{path.name}: {lines} cannot be read.")
        loaded.append(recording)
    ranks = {recording.rank: tuple(recording.history.samples()) for recording in loaded if len(recording.history)}
    if not ranks:
        return None
    logged = [alert for recording in loaded for alert in recording.logged]
    remarks = dict.fromkeys(note for recording in loaded for note in recording.notes)
    return Machine(ranks=ranks, alerts=tuple(merged(alerts_of_ranks(ranks), logged)), remarks=tuple(remarks))
