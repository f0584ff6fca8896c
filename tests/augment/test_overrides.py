"""Fields of operations changed by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hasten.augment.affine import Spatial
from hasten.augment.contrast import Gamma
from hasten.augment.crop import CropByPosNegLabel
from hasten.augment.noise import GaussianNoise
from hasten.augment.run_chain import with_overrides

OPS = (Spatial(), GaussianNoise(prob=0.1), Gamma(prob=0.1), Gamma(prob=0.3))


def test_fields_are_changed() -> None:
    override = {"GaussianNoise.prob": 0.2, "Gamma": {"gamma": [0.5, 2]}, "Gamma[1].prob": 1}
    result = with_overrides(OPS, override)
    assert result == (
        Spatial(),
        GaussianNoise(prob=0.2),
        Gamma(prob=0.1, gamma=(0.5, 2.0)),
        Gamma(prob=1.0, gamma=(0.5, 2.0)),
    )
    assert isinstance(result[3].prob, float)
    assert with_overrides(OPS, {}) == OPS
    crop = CropByPosNegLabel(size=(8, 8, 8), image_key="image")
    assert with_overrides([crop], {"CropByPosNegLabel.image_key": None})[0].image_key is None


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        (
            "GaussianNoize.prob", 0.1,
            "no such operation; did you mean GaussianNoise?",
        ),
        ("Blur.prob", 0.1, "; the chain has Spatial, GaussianNoise, Gamma"),
        ("Spatial.rotate_probs", 0.1, "did you mean rotate_prob or rotate? Spatial has keys,"),
        ("Gamma[2].prob", 0.1, "2 Gamma, counted from 0; write Gamma[1].prob, or Gamma.prob"),
        ("Gamma.prob", 1.5, "Gamma: prob=1.5; a probability lies between 0 and 1"),
        ("Gamma.prob", "often", "must be a valid number"),
        ("Gamma.prob", True, "must be a number (given True)"),
        ("Gamma.prob", None, "must be a valid number (given None)"),
        ("Gamma.gamma", [0.5], "(given [0.5])"),
        ("Gamma.gamma", 0.5, "(given 0.5)"),
        ("Gamma.gamma", [2, 1], "the range is the wrong way round"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_can_not_be(target: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        with_overrides(OPS, {target: value})
    assert str(raised.value).startswith(f"augment.override: {target}: ")
    assert "\n" not in str(raised.value)


def test_no_operation_at_all() -> None:
    with pytest.raises(ValueError, match="no such operation; the chain has none"):
        with_overrides([], {"Gamma.prob": 0.1})
