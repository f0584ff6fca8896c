"""The example of two networks over several processes: two ranks train as one process does."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from hasten.phantoms.organs import write_phantoms
from tests.distribute.ranks import run_ranks

SETTINGS = [
    "train.device=cpu",
    "train.precision=fp32",
    "train.channels_last=false",
    "sample.patch=[16, 16, 16]",
    "sample.batch_size=4",
]
STEPS = 20


@pytest.mark.slow
def test_two_ranks_train_as_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    source = write_phantoms(tmp_path / "phantoms", num_cases=5, shape=(16, 24, 24), spacing=(1.0, 1.0, 1.0))
    script = Path(__file__).parents[1] / "examples/gan_ranks.py"
    alone = runpy.run_path(str(script))["main"](str(source), STEPS, *SETTINGS)
    printed = re.findall(r"^step (\d+)  segmenter (\S+)  critic (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [int(step) for step, *_ in printed] == [10, 20]
    ranks = run_ranks("tests.gan_rank", 2, script, json.dumps([str(source), STEPS, *SETTINGS]))
    for rank in ranks:
        assert rank["losses"] == pytest.approx([loss for losses in alone for loss in losses], rel=1e-3)
        # Each network's gradients went over the ranks once a step: not in the other one's.
        assert rank["exchanges"] == {"segmenter": STEPS, "critic": STEPS}
    assert alone[1][0] < alone[0][0]
