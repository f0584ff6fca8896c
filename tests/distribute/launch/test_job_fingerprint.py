"""What must be the same on all hosts of a job."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hasten.config.fingerprint import Fingerprint
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.distribute.consensus import code_hash, settings_hash, start_facts

FINGERPRINT = Fingerprint(
    name="made up",
    num_cases=1,
    spatial_dims=3,
    modality="MRI",
    channels=("MRI",),
    labels={0: "background", 1: "organ"},
    shapes=((8, 8, 8),),
    spacings=((1.0, 1.0, 1.0),),
    sampled_cases=1,
    intensity={},
    foreground_intensity={},
    crop_fraction=1.0,
)


def test_where_the_data_lie_makes_no_difference() -> None:
    plain = settings_hash(RunConfig())
    assert settings_hash(load_run(None, ("data.source=/mnt/a", "cache.dir=/tmp/b", "prepare.num_threads=3"))) == plain
    assert settings_hash(load_run(None, ("observe.monitor_every=5",))) == plain
    assert settings_hash(load_run(None, ("train.seed=7",))) != plain
    assert settings_hash(load_run(None, ("data.split.seed=7",))) != plain


def test_cases_of_another_name_or_size_are_other_data() -> None:
    facts = start_facts(RunConfig(), FINGERPRINT, cases=["a"])
    assert facts == start_facts(RunConfig(), FINGERPRINT, cases=["a"])
    larger = dataclasses.replace(FINGERPRINT, shapes=((8, 8, 9),))
    for other in (start_facts(RunConfig(), larger, cases=["a"]), start_facts(RunConfig(), FINGERPRINT, cases=["b"])):
        assert {name for name in facts if other[name] != facts[name]} == {"the data"}


def test_any_line_of_the_code_counts(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("x = 1\n")
    before = code_hash(tmp_path)
    assert code_hash(tmp_path) == before
    (tmp_path / "notes.txt").write_text("not code")
    assert code_hash(tmp_path) == before
    (tmp_path / "part" / "a.py").write_text("x = 2\n")
    changed = code_hash(tmp_path)
    (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    assert len({before, changed, code_hash(tmp_path)}) == 3
