"""The section `augment`: what excludes what, and how overrides are written."""

from __future__ import annotations

import dataclasses

import pytest

from hasten.config.augment import OF_DEFAULT
from hasten.config.load import load_run
from hasten.config.schema import SampleConfig


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["augment.preset=nnunet", "augment.chain=a.py:b"], "augment.chain: takes the place of a preset"),
        (["augment.digest=abc"], "augment.digest: has no effect without augment.chain"),
        (["augment.chain=a.py"], r"augment.chain: must be FILE.py:NAME or .*\(given a.py\)"),
        (["augment.override={GaussianNoise.prob:0.2}"], "write a space after the colon, as YAML asks"),
        (["augment.override={GaussianNoise: 0.2}"], "GaussianNoise: must read Operation.field"),
        (["augment.override={GaussianNoise.prob: .nan}"], "GaussianNoise.prob: must be a finite number"),
        (["augment.preset=pathology", "prepare.intensity=zscore"], "set prepare.intensity=window"),
    ],
)
def test_settings_that_make_no_sense(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load_run(None, overrides)
    assert "\n" not in str(raised.value)


def test_strengths_of_the_default_belong_to_it() -> None:
    for chosen in ("augment.preset=nnunet", "augment.preset=none", "augment.chain=mine:chain"):
        with pytest.raises(ValueError, match=r"sample.noise_prob: .*augment.preset=default .* default 0.1,"):
            load_run(None, [chosen, "sample.noise_prob=0.2"])
        with pytest.raises(ValueError, match=r"sample.flip_prob: belongs .* default \[0.0, 0.0, 0.0\],"):
            load_run(None, [chosen, "sample.flip_prob=[0, 0, 0.5]"])
        same = ["sample.noise_prob=0.1", "sample.flip_prob=[0, 0, 0]", "sample.patch=[8, 8, 8]", "sample.batch_size=3"]
        load_run(None, [chosen, *same, "sample.foreground_prob=0.1", "sample.stages=[[0.5, 0.5]]"])
    load_run(None, ["sample.noise_prob=0.2", "augment.override={Contrast.prob: 0.3}"])


def test_every_field_of_sample_is_a_strength_or_goes_on_for_all() -> None:
    names = {field.name for field in dataclasses.fields(SampleConfig)}
    rest = {"patch", "batch_size", "fit_batch", "foreground_prob", "stages"}
    assert names == rest | set(OF_DEFAULT)
