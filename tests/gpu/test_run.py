"""A whole run on the card: trained with what it chooses itself, and predicted there and on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.prediction.predict import predict
from tests.training.phantom_runs import AFFINES, IN_3D, anatomy, array_of, save, source, trained

DEVICE = "cuda"
NETWORKS: dict[str, tuple[str, ...]] = {
    "instance": (),
    "batch with dropout": ("network.norm=batch", "network.dropout=0.2"),
}


def run_of(folder: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    run = trained(folder, source(folder / "data"), *IN_3D, f"train.device={DEVICE}", "train.steps=300", *overrides)
    return run, json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize("network", NETWORKS)
def test_a_run_that_measures_trains_and_predicts_alike_on_both_devices(tmp_path: Path, network: str) -> None:
    measured = ("train.precision=null", "train.channels_last=null")
    run, summary = run_of(tmp_path, *measured, *NETWORKS[network])
    assert summary["status"] == "finished"
    assert summary["best"]["value"] > 0.6
    image, label = anatomy(9)
    path = save(tmp_path / "new.nii.gz", image, AFFINES["RAS"])
    there, here = (
        array_of(predict(run, path, tmp_path / f"labels{number}", device=name)[0])
        for number, name in enumerate((DEVICE, "cpu"))
    )
    assert np.mean(there == here) > 0.99
    assert np.mean(there == label) > 0.9


@pytest.mark.parametrize("network", NETWORKS)
def test_kernels_and_a_graph_train_as_torch_does(tmp_path: Path, network: str) -> None:
    """Dice after as many steps, within what seeds differ."""
    scores = []
    for on in ("true", "false"):
        settings = ("train.precision=bf16", "train.channels_last=true", f"train.fused_kernels={on}")
        _, summary = run_of(tmp_path / on, *settings, f"train.capture={on}", *NETWORKS[network])
        scores.append(summary["best"]["value"])
    assert min(scores) > 0.6
    assert abs(scores[0] - scores[1]) < 0.15
