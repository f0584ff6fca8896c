from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases.regions import Region, paint, regions_of, resolve_regions, with_regions
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import DataConfig

LABELS = {0: "background", 1: "necrosis", 2: "oedema", 4: "enhancing"}
BRAIN = {"whole": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}


def cases(**given: object) -> CaseSet:
    case = Case(id="a", image=(Path("a.nii.gz"),), label=Path("b.nii.gz"))
    return CaseSet(name="brain", source=Path("dataset.json"), cases=(case,), labels=LABELS, **given)  # type: ignore[arg-type]


def test_values_become_places_in_the_class_index() -> None:
    assert regions_of(cases(regions=BRAIN)) == (
        Region("whole", (1, 2, 3), 2),
        Region("core", (1, 3), 1),
        Region("enhancing", (3,), 3),
    )
    assert regions_of(cases()) == ()


def test_the_settings_come_before_the_source() -> None:
    declared = cases(regions=BRAIN, region_values={"enhancing": 4})
    assert with_regions(declared, DataConfig()) == declared
    own = with_regions(declared, DataConfig(regions={"all": (1, 2)}, region_values={"all": 2}))
    assert (own.regions, own.region_values) == ({"all": (1, 2)}, {"all": 2})
    # The source's values belong to its own regions.
    assert with_regions(declared, DataConfig(regions={"all": (4,)})).region_values == {}
    plain = with_regions(declared, DataConfig(regions={}))
    assert (plain.regions, plain.region_values) == ({}, {})
    overlapping = cases(regions={"a": (1, 2), "b": (2, 4)})
    output = with_regions(overlapping, DataConfig(region_values={"b": 4}))
    assert [region.painted for region in regions_of(output)] == [1, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            DataConfig(regions={"core": (1, 3)}),
            r'^data\.regions: "core" holds 3, .*0, 1, 2, 4; correct',
        ),
        (DataConfig(regions={"core": (1, 2)}), r'^data\.regions: "core" could be painted'),
        (DataConfig(), r'^dataset\.json: regions: "bad" is empty'),
    ],
)
def test_a_mistake_is_told_where_it_stands(data: DataConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_regions(cases(regions={"bad": ()}), data)


@given(st.integers(0, 999))
def test_nested_masks_painted_are_the_label_map_they_came_from(seed: int) -> None:
    label = np.random.default_rng(seed).integers(0, 4, (3, 4, 5), dtype=np.uint8)
    regions = resolve_regions(BRAIN, {}, LABELS, "here")
    masks = np.stack([np.isin(label, region.members) for region in regions])
    painted = paint(masks, regions)
    assert painted.dtype == np.uint8
    assert np.array_equal(painted, label)


@given(st.integers(0, 999))
def test_of_masks_that_are_not_nested_the_last_one_shows(seed: int) -> None:
    masks = np.random.default_rng(seed).random((3, 4, 4, 4)) < 0.5
    regions = resolve_regions(BRAIN, {}, LABELS, "here")
    painted = paint(masks, regions)
    for place in np.ndindex(4, 4, 4):
        holding = [region.painted for mask, region in zip(masks, regions, strict=True) if mask[place]]
        assert painted[place] == (holding[-1] if holding else 0)
