"""Neptune, offline in RUN/.neptune (extra `neptune`): its service at neptune.ai was shut down in March 2026."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasten.observe.trackers.base import Place, Plain, Scalar, Status

DATA = ".neptune"
_FOLDER = "NEPTUNE_DATA_DIRECTORY"
_STOP_S = 5.0
_environment = threading.Lock()


def begin(place: Place) -> NeptuneRun:
    return NeptuneRun(place)


class NeptuneRun:
    """One offline run; a resumed one is a second folder of the same custom id."""

    def __init__(self, place: Place) -> None:
        import neptune

        # It announces each start and stop.
        logging.getLogger("neptune").setLevel(logging.WARNING)
        known = place.ids.get("neptune").get("custom_run_id")
        run_id = known or secrets.token_hex(8)
        with _data_folder(place.folder / DATA):
            self._run: Any = neptune.init_run(
                mode="offline",
                name=place.run_name,
                custom_run_id=run_id,
                source_files=[],
                git_ref=False,
                capture_stdout=False,
                capture_stderr=False,
                capture_hardware_metrics=False,
                capture_traceback=False,
            )
        place.ids.put("neptune", {"custom_run_id": run_id})
        self._run["project"] = place.project
        for name, value in place.config.items():
            self._run[f"config/{name.replace('.', '/')}"] = value

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            self._run[scalar.name].append(scalar.value, step=scalar.step, timestamp=scalar.time)

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        self._run["status"] = status
        for name, value in summary.items():
            self._run[f"summary/{name}"] = value
        self._run.stop(seconds=_STOP_S)


@contextmanager
def _data_folder(folder: Path) -> Iterator[None]:
    """Neptune knows no other way to be told a folder than the environment; a folder that the user set stays."""
    if os.environ.get(_FOLDER):
        yield
        return
    with _environment:
        os.environ[_FOLDER] = str(folder)
        try:
            yield
        finally:
            del os.environ[_FOLDER]
