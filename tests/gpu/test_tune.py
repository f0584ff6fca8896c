"""The search on a GPU: every stage has arms that run there."""

from __future__ import annotations

from pathlib import Path

from hasten.cases.phantom import write_phantoms
from hasten.config.load import load_run
from hasten.engine.run_plan import plan_run
from hasten.study.tune.arm_builder import ArmBuilder
from hasten.study.tune.arm_timer import ArmTimer
from hasten.study.tune.space import room_of, space_of, start_of
from hasten.study.tune.stored import StoredMeasurements


def test_every_arm_runs_or_says_why_not(tmp_path: Path) -> None:
    write_phantoms(tmp_path / "data", num_cases=4, shape=(16, 32, 32), spacing=(10.0, 4.0, 4.0))
    given = (
        f"data.source={tmp_path / 'data'}", f"cache.dir={tmp_path / 'cache'}", "train.device=cuda",
        "sample.patch=[16,32,32]", "sample.batch_size=2", "network.channels=[8,16]", "network.strides=[[2,2,2]]",
        "train.optimizer=adamw",
    )  # fmt: skip
    planned = plan_run(load_run(None, given))
    builder, start = ArmBuilder(planned), start_of(planned)
    timer = ArmTimer(builder, start)
    room = room_of(builder, start, StoredMeasurements.open(tmp_path / "kept", {}, fresh=True))
    for stage in space_of(planned, start, room).stages:
        arms = [arm for arm in (start.having(change) for change in stage.changes) if arm != start]
        result = timer.measure(stage.kind, start, arms, 600.0)
        assert set(result) == set(arms)
        for arm, measured in result.items():
            assert measured.outcome != "disagreed", (stage.name, arm.apart(start), measured.agreement)
            assert measured.gain is not None or measured.why, (stage.name, arm.apart(start))
