from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import hasten.cache.arena as pages
from hasten.cache.arena import Pages

SHAPES, CHANNELS = [(3, 4, 5), (6, 5, 4)], 2
OFFSETS = [0, 60]
corner = st.tuples(*[st.integers(-3, 8)] * 3)


def pages_of(*cases: int) -> Pages:
    values = {"image": torch.zeros(180 * CHANNELS, dtype=torch.float16), "label": torch.zeros(180, dtype=torch.uint8)}
    return Pages(values, {"image": CHANNELS, "label": 1}, cases, shapes=SHAPES, offsets=OFFSETS)


@given(case=st.integers(0, 1), low=corner, size=st.tuples(*[st.integers(0, 7)] * 3))
def test_every_voxel_of_the_box_is_asked_for_and_few_more(
    case: int, low: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    asked = {"image": np.zeros(180 * CHANNELS * 2, bool), "label": np.zeros(180, bool)}
    held = pages_of(0, 1)

    def advise(address: int, count: int) -> None:
        assert count > 0
        starts = {name: address - flat.data_ptr() for name, flat in held.values.items()}
        (name,) = (name for name, start in starts.items() if 0 <= start <= len(asked[name]) - count)
        asked[name][starts[name] : starts[name] + count] = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "read_ahead", advise)
        held.want(case, low, [at + side for at, side in zip(low, size, strict=True)])
    wanted = np.zeros(SHAPES[case], bool)
    box = tuple(slice(max(0, at), max(0, at + side)) for at, side in zip(low, size, strict=True))
    wanted[box] = True
    voxels = wanted.size
    label = asked["label"][OFFSETS[case] : OFFSETS[case] + voxels].reshape(SHAPES[case])
    image = asked["image"][OFFSETS[case] * CHANNELS * 2 :][: voxels * CHANNELS * 2].reshape(CHANNELS, *SHAPES[case], 2)
    assert label[wanted].all()
    assert image[:, wanted].all()
    assert asked["label"].sum() == label.sum() <= 2 * max(1, wanted.any(axis=(1, 2)).sum()) * wanted[0].size
    if not wanted.any():
        assert not asked["label"].any()
        assert not asked["image"].any()


def test_cases_in_memory_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "read_ahead", lambda *_: pytest.fail("asked"))
    pages_of(1).want(0, (0, 0, 0), (3, 4, 5))
