"""The benchmark of predictions runs end to end on small phantoms, without nnU-Net."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.predict import main
from benchmarks.predictions.scene import CLASSES, organ_scores, organs


def test_scores_are_highest_where_the_label_is() -> None:
    _, label = organs((40, 60, 60), 3)
    assert set(np.unique(label)) == set(range(CLASSES))
    assert (organ_scores((40, 60, 60), 3).argmax(0) == label).mean() > 0.99


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path / "work")])
    [file] = tmp_path.glob("predict_*_quick.json")
    results = json.loads(file.read_text())["results"]
    assert {
        "end/hasten_s",
        "end/monai_s",
        "export/hasten_s",
        "export/monai_s",
        "dice/hasten_dice",
        "memory/resampled/mib",
    } <= set(results)
    assert results["dice/hasten_dice"]["median"] > results["dice/nearest_dice"]["median"]
    assert results["export/hasten_dice"]["min"] > 0.9
    assert [path.suffix for path in tmp_path.iterdir() if path.is_file()] == [".json"]
