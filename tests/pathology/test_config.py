from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from hasten.config.resume_rules import flat
from hasten.pathology.config import DETECTION_RULES, DetectionConfig, load


def test_settings_and_overrides_make_a_run() -> None:
    config = load({"tiles": {"size": 96}, "train": {"epochs": 3}}, ["train.epochs=5", "detect.rates=[1, 2]"])
    assert (config.tiles.size, config.train.epochs, config.detect.rates) == (96, 5.0, (1.0, 2.0))
    assert load() == DetectionConfig()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tiles.sizes=3", r"override 'tiles.sizes=3': .*did you mean tiles.size"),
        ("tiles.size=0", r"tiles.size: must be 1 or more \(given 0\)"),
        ("tiles.ram=big", "tiles.ram: must be a size with a unit, such as 8GiB"),
        ("detect.threshold=1.5", "detect.threshold: must be at most 1"),
        ("data.fraction=0.9", "data.fraction: must be at most 0.5"),
        ("data.backend=bioformats", "data.backend: must be 'auto'"),
        ("detect.rates=[]", "detect.rates: must be numbers of 0 or more"),
        ("train.ema=1", "train.ema: must be below 1"),
        ("kind=segmentation", "kind: must be 'detection'"),
        ("train.device=tpu", "train.device: must be auto, cpu, cuda or cuda:N"),
        ("observe.monitor_every=-1", r"observe.monitor_every: must be 0 \(off\)"),
    ],
)
def test_a_mistake_is_told_with_its_path(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(None, [override])


def test_every_setting_has_a_rule_for_resuming() -> None:
    used = {next(pattern for pattern in DETECTION_RULES if fnmatchcase(name, pattern)) for name in flat(load())}
    assert used == set(DETECTION_RULES)
