from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.prediction.predict import load_predictor, predict
from tests.training.phantom_runs import SPACING, anatomy, array_of, save


@pytest.fixture
def case(tmp_path: Path) -> Path:
    return save(tmp_path / "new.nii.gz", anatomy(5)[0], np.diag([*SPACING, 1.0]))


def test_inference_changes_and_the_network_does_not(run: Path, case: Path, tmp_path: Path) -> None:
    changes = ["infer.overlap=0.25", "infer.flip_axes=[0, 1, 2]", "infer.patch=[14, 16, 18]"]
    before, after = load_predictor(run).model, load_predictor(run, overrides=changes).model
    assert (after.inference.overlap, after.inference.flip_axes) == (0.25, (0, 1, 2))
    assert after.inference.window == (14, 16, 18)
    assert before.prepare == after.prepare
    [plain] = predict(run, case, tmp_path / "plain")
    [other] = predict(run, case, tmp_path / "other", overrides=changes)
    assert not np.array_equal(array_of(plain), array_of(other))
    expected = load_predictor(run, overrides=changes)(anatomy(5)[0].T, spacing=SPACING[::-1])
    assert np.array_equal(array_of(other).T, expected)
    assert load_predictor(run, overrides=["infer.patch=null"]).model.inference == before.inference


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("prepare.spacing=[1, 1, 1]", "override 'prepare.spacing=.*': .* section infer only"),
        ("overlap=0.25", "section infer only, such as infer.overlap=0.25"),
        ("infer.overlaps=0.25", "override .*infer.overlaps: .*did you mean infer.overlap"),
        ("infer.overlap=1.5", "infer.overlap: "),
        ("infer.flip_axes=[3]", r"infer.flip_axes\[0\]: must be at most 2"),
        ("infer.patch=[12, 15, 16]", r"best.pt: infer.patch: \[12, 15, 16\] .*of \[2, 2, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused(run: Path, case: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(run, case, tmp_path / "out", overrides=[override])
    assert not (tmp_path / "out").exists()
