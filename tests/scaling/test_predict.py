"""Predicted scaling: the model's laws, and what logs tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hasten.cli.scale import app
from hasten.scaling.logs import Mode
from hasten.scaling.predict import COMMUNICATION, COMPUTE, FIXED, Fit, fit_epochs, fit_logs, predict
from tests.scaling.studies import csv_log

LOGS = Path(__file__).parents[4] / "shared" / "data" / "unet_scaling_logs"
MODES = st.sampled_from(["weak", "strong"])


def fit(mode: Mode, *seconds: float) -> Fit:
    return Fit(mode=mode, seconds=np.array(seconds), draws=np.array([seconds]), note="")


@given(MODES, st.floats(1e-3, 1e4), st.floats(0, 1e3), st.floats(0, 1e3), st.integers(1, 2048))
def test_an_efficiency_is_a_share_and_what_is_lost_is_the_rest(
    mode: Mode, compute: float, sent: float, rest: float, workers: int
) -> None:
    one = predict(fit(mode, compute, sent, rest), workers)
    assert 0 < one.efficiency <= 1 + 1e-9
    assert one.efficiency + sum(one.losses.values()) == pytest.approx(1)
    assert predict(fit(mode, compute, sent, rest), 1).efficiency == pytest.approx(1)
    assert predict(fit(mode, compute, 2 * sent, rest), workers).efficiency <= one.efficiency + 1e-9


@pytest.mark.parametrize(
    ("seconds", "limit"), [((100, 0, 0), COMPUTE), ((100, 50, 0), COMMUNICATION), ((100, 0.1, 5), FIXED)]
)
def test_what_limits_is_named(seconds: tuple[float, float, float], limit: str) -> None:
    assert predict(fit("weak", *seconds), 64).limit == limit


def _epoch(workers: int, mode: Mode, compute: float, sent: float, rest: float) -> float:
    factor = 2 * (workers - 1) / workers**2 if mode == "weak" else 2 * np.ceil(np.log2(workers))
    return compute / workers + sent * factor + rest


@settings(max_examples=10)
@given(st.floats(10, 500), st.floats(0, 100), st.floats(0, 20), MODES)
def test_an_epoch_s_shares_are_recovered_from_counts(compute: float, sent: float, rest: float, mode: Mode) -> None:
    shares = (compute, sent if mode == "weak" else sent / 100, rest)
    fitted = fit_epochs({workers: _epoch(workers, mode, *shares) for workers in (1, 2, 4, 8, 16)}, mode)
    for workers in (1, 2, 3, 64):
        one = predict(fitted, workers)
        assert one.epoch_s == pytest.approx(_epoch(workers, mode, *shares), rel=1e-3, abs=1e-3)
        assert one.efficiency_range[0] <= one.efficiency <= one.efficiency_range[1]
        assert one.epoch_range[0] < one.epoch_s < one.epoch_range[1]


def write_logs(folder: Path, epochs: Mapping[int, float], infix: str = "") -> Path:
    """One CSV a count of workers, whose epochs take these seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    for workers, seconds in epochs.items():
        csv_log(folder, f"log_{infix}{workers}.csv", seconds)
    return folder


@pytest.mark.skipif(not LOGS.is_dir(), reason="the 16 logs are not here")
def test_fourteen_gpus_are_predicted_from_four(tmp_path: Path) -> None:
    """Within 10 % for both strategies of the study, from logs of 1, 2 and 4 GPUs alone."""
    for infix, measured in (("", 16.16), ("hvd_", 32.49)):
        folder = tmp_path / f"logs-{infix}"
        folder.mkdir()
        for workers in (1, 2, 4):
            name = f"log_{infix}{workers}.csv"
            (folder / name).write_bytes((LOGS / name).read_bytes())
        assert predict(fit_logs(folder, "weak"), 14).epoch_s == pytest.approx(measured, rel=0.10)


def test_logs_by_the_command(tmp_path: Path) -> None:
    folder = write_logs(tmp_path / "logs", {1: 100.0, 2: 54.0, 4: 28.0})
    write_logs(folder, {1: 100.0, 2: 80.0, 4: 60.0}, "hvd_")
    done = CliRunner().invoke(app, ["predict", str(folder), "--workers", "8,1024"])
    assert done.exit_code == 0, done.exception
    assert "Efficiency" in done.output
    assert "(native) of 1, 2, 4 workers" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["two", "--workers", "8,x"], "--workers: 'x' is no whole number"),
        (["two", "--workers", "0"], "--workers 0: give whole numbers"),
        (["two"], "are too few to fit"),
        (["slow"], "epochs don't get shorter"),
        (["empty"], "holds no log of a scaling study"),
        (["nowhere"], "no such folder"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_logs(tmp_path / "two", {1: 9.0, 2: 5.0})
    write_logs(tmp_path / "slow", {1: 1.0, 2: 2.0, 4: 8.0})
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["predict", str(tmp_path / arguments[0]), *arguments[1:]])
    assert isinstance(result.exception, ValueError), result.output
    assert message in str(result.exception)
