"""MLflow's own pages show a run of ours: its server on loopback, looked at with a headless browser."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hasten.observe.rundir import write_json
from hasten.observe.trackers import Tracking
from hasten.observe.trackers.base import Ids

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of MLflow's server of folder/mlflow.db; it is ended, with the processes that it starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
               "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]  # fmt: skip
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )  # fmt: skip
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, folder / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(log.read_text())


def shown_text(url: str, profile: Path) -> str:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
               "--virtual-time-budget=30000", "--dump-dom", url]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
def test_the_page_of_a_run_shows_its_name_metrics_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "run"
    run.mkdir()
    write_json(run / "env.json", {})
    with Tracking(
        ["mlflow"], run, project="brains", run_name="sunny-lynx", config={"sample": {"batch_size": 77}}
    ) as tracked:
        for step in range(10, 60, 10):
            tracked.log({"kind": "train", "step": step, "loss": 4 / step})
            tracked.log({"kind": "validation", "step": step, "dice": 0.8125, "dice_per_class": {"Anterior": 0.75}})
        tracked.summary({"status": "finished", "best": {"value": 0.8125}})
    run_id = Ids(run).get("mlflow")["run_id"]
    with server(tmp_path) as address:
        shown = shown_text(f"{address}/#/experiments/1/runs/{run_id}", tmp_path / "profile")
    for text in ("sunny-lynx", "train/loss", "validation/dice_per_class/Anterior", "0.8125", "sample.batch_size", "77"):
        assert text in shown, text
