from __future__ import annotations

from pathlib import Path

import pytest

from hasten.config.load import load_run
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.cases.servers import serving
from tests.training.runs import SETTINGS, metrics

pytest.importorskip("aiohttp")


def test_a_run_on_a_remote_set_is_the_run_on_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    there = write_phantoms(tmp_path / "set", num_cases=4, shape=(16, 24, 24))
    files = {f"/set/{path.relative_to(there)}": path.read_bytes() for path in there.rglob("*") if path.is_file()}
    with serving(files) as server:
        server.truncate = 2
        losses = []
        for name, source in (("far", f"{server.url}/set"), ("near", str(there))):
            settings = (*SETTINGS, f"data.source={source}", f"cache.dir={tmp_path / name}", "train.steps=4")
            train(load_run(None, settings), tmp_path / f"{name}-run")
            losses.append([line["loss"] for line in metrics(tmp_path / f"{name}-run", "train")])
    assert losses[0] == losses[1]
    assert losses[0]
    assert len(list((tmp_path / "far/remote").rglob("*.nii.gz"))) == 8
