"""The search on a GPU: every stage has arms that run there."""

from __future__ import annotations

from pathlib import Path

from hasten.config.load import load_run
from hasten.doctor.training import plan_run
from hasten.doctor.tune.arms import Arms
from hasten.doctor.tune.run import stages_of, start_of
from hasten.phantoms.organs import write_phantoms


def test_every_arm_runs_or_says_why_not(tmp_path: Path) -> None:
    write_phantoms(tmp_path / "data", num_cases=4, shape=(16, 32, 32), spacing=(10.0, 4.0, 4.0))
    given = (
        f"data.source={tmp_path / 'data'}", f"cache.dir={tmp_path / 'cache'}", "train.device=cuda",
        "sample.patch=[16,32,32]", "sample.batch_size=2", "network.channels=[8,16]", "network.strides=[[2,2,2]]",
        "train.optimizer=adamw",
    )  # fmt: skip
    planned = plan_run(load_run(None, given))
    start = start_of(planned)
    arms = Arms(planned, start)
    for stage in stages_of(planned, start):
        settings = [arm for arm in (start.having(change) for change in stage.changes) if arm != start]
        result = arms.measure(stage.kind, start, settings, 600.0)
        assert set(result) == set(settings)
        for arm, measured in result.items():
            assert measured.outcome != "disagreed", (stage.name, arm.apart(start), measured.agreement)
            assert measured.gain is not None or measured.why, (stage.name, arm.apart(start))
