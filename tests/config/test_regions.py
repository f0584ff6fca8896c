from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.config.load import load_run
from hasten.config.regions import painted_values, region_mistakes

BRAIN = {"whole": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}


@pytest.mark.parametrize(
    ("regions", "values", "wanted"),
    [
        (BRAIN, {}, {"whole": 2, "core": 1, "enhancing": 4}),
        ({"a": (3,), "b": (1,)}, {}, {"a": 3, "b": 1}),
        # KiTS: kidney and masses, of which cyst and tumour: three names for as many values, one region after another.
        (
            {"kidney": (1, 2, 3), "masses": (2, 3), "tumour": (2,)},
            {},
            {"kidney": 1, "masses": 3, "tumour": 2},
        ),
        # Neither lies in the other: the second needs to be told.
        ({"left": (1, 2), "right": (2, 3)}, {"right": 3}, {"left": 1, "right": 3}),
        ({"a": (1, 2)}, {"a": 2}, {"a": 2}),
    ],
)
def test_a_region_is_painted_with_what_tells_it(
    regions: dict[str, tuple[int, ...]], values: dict[str, int], wanted: dict[str, int]
) -> None:
    assert not list(region_mistakes(regions, values))
    assert painted_values(regions, values) == wanted


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(1, 5), min_size=1, unique=True).map(tuple), min_size=1
    )
)
def test_a_sound_set_paints_every_region_with_its_own_value_and_hides_none(regions: dict[str, tuple[int, ...]]) -> None:
    mistakes = list(region_mistakes(regions, {}))
    if mistakes:
        assert all(len(mistake) > 20 for mistake in mistakes)
        return
    painted = painted_values(regions, {})
    assert len(set(painted.values())) == len(regions)
    for name, members in regions.items():
        later = set(chain.from_iterable(list(regions.values())[list(regions).index(name) + 1 :]))
        assert painted[name] in set(members) - later


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("data.regions={a: []}", '"a" is empty; name the label values'),
        ("data.regions={a: [1], ' ': [2]}", "a region has an empty name"),
        ("data.regions={a: [0, 1]}", '"a" holds 0; only values above the background'),
        ("data.regions={a: [1, 1]}", r'"a" names a label value twice: \[1, 1\]'),
        ("data.regions={a: [1, 2], b: [2, 1]}", '"a" would be hidden by the regions after it'),
        ("data.regions={a: [1, 2]}", r'any of \[1, 2\].*data.region_values=\{"a": 1\}'),
        ("data.regions={a: 1}", r"data\.regions\.a"),
    ],
)
def test_regions_that_make_no_sense_are_told(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(None, [given])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{c: 1}", r'data.region_values .*"c", .*no region; .* a, b'),
        ("{a: 3}", r'data.region_values .*"a" with 3; .*own values \[1, 2\]'),
        ("{a: 2, b: 2}", "data.region_values paints two regions with 2"),
    ],
)
def test_values_that_paint_nothing_are_told(values: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(None, ["data.regions={a: [1, 2], b: [2, 3]}", f"data.region_values={values}"])
