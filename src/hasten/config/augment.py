"""The section `augment`: which settings exclude each other, and how overrides of operations are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hasten.config.patterns import as_lists
from hasten.config.scalings import kinds_of
from hasten.config.schema import AugmentConfig, PrepareConfig, SampleConfig
from hasten.config.user_code import is_plain, is_user_code

OF_DEFAULT = (
    "flip_prob",
    "affine_prob",
    "rotate_deg",
    "scale_range",
    "brightness_prob",
    "contrast_prob",
    "gamma_prob",
    "noise_prob",
)
"""Fields of `sample` that are the strengths of the preset `default`."""
ROTATE_DEG, SCALE_RANGE = (15.0, 15.0, 15.0), (0.85, 1.2)
"""Ranges of `default`, unless `sample` or `train.budget` sets others: strong ones cost Dice in short runs."""
_TARGET = re.compile(r"\w+(\[\d+\])?\.\w+")


def chain_name(augment: AugmentConfig) -> str:
    """The preset or the chain as it was set: "augment.preset=nnunet"."""
    return f"augment.chain={augment.chain}" if augment.chain else f"augment.preset={augment.preset}"


def override_items(override: Mapping[str, Any]) -> dict[str, Any]:
    """Value by "Operation.field"; {"Gamma": {"prob": 0.2}} is the same as {"Gamma.prob": 0.2}."""
    items: dict[str, Any] = {}
    for name, value in override.items():
        items |= (
            {f"{name}.{field}": each for field, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return items


def augment_mistakes(augment: AugmentConfig, sample: SampleConfig, prepare: PrepareConfig) -> Iterator[str]:
    """What is wrong with the section whatever the chain holds, each as "dotted.path: what is wrong"."""
    chain, name = augment.chain, chain_name(augment)
    if chain and augment.preset != "default":
        yield f"augment.chain: takes the place of a preset (given {augment.preset}); leave one of them out"
    if chain and not is_user_code(chain):
        yield f"augment.chain: must be FILE.py:NAME or package.module:NAME (given {chain})"
    if augment.digest is not None and not chain:
        yield "augment.digest: has no effect without augment.chain; leave it out"
    if chain or augment.preset != "default":
        yield from _strengths(sample, name)
    if augment.preset == "pathology" and not chain:
        yield from _colours(augment, prepare)
    for target, value in override_items(augment.override).items():
        if value is None and ":" in target:
            yield f"augment.override: {target}: write a space after the colon, as YAML asks"
        elif not _TARGET.fullmatch(target):
            yield f"augment.override: {target}: must read Operation.field, such as GaussianNoise.prob, or Gamma[0].prob"
        elif isinstance(value, dict) or not is_plain(value):
            yield f"augment.override: {target}: must be a finite number, true, false, a text, or a list (given {value})"


def _strengths(sample: SampleConfig, name: str) -> Iterator[str]:
    """Strengths of `default` that another chain would ignore. The plan sets `flip_prob` to no flips for these."""
    no_flips = (0.0, 0.0, 0.0)
    for field in OF_DEFAULT:
        value, default = getattr(sample, field), getattr(SampleConfig(), field)
        if value != default and (field, value) != ("flip_prob", no_flips):
            default = no_flips if field == "flip_prob" else default
            yield (
                f"sample.{field}: belongs to augment.preset=default (given {as_lists(value)}); with {name} leave it "
                f"out, or at its default {as_lists(default)}, and write augment.override={{Operation.field: value}}"
            )


def _colours(augment: AugmentConfig, prepare: PrepareConfig) -> Iterator[str]:
    ranged = {"window", "none"} if "ColorJitter.value_range" in override_items(augment.override) else {"window"}
    if prepare.intensity is not None and not ranged.issuperset(kinds_of(prepare, 1)):
        yield (
            f"augment.preset: pathology changes colours, and prepare.intensity={prepare.intensity} does not state "
            "their range; set prepare.intensity=window and prepare.window=[0, 255], or none and "
            "augment.override={ColorJitter.value_range: 255}"
        )
