from __future__ import annotations

import os
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import hasten.cache.pages as pages
from hasten.cache.pages import Pages

SHAPES, CHANNELS = [(3, 4, 5), (6, 5, 4)], 2
OFFSETS = [0, 60]
corner = st.tuples(*[st.integers(-3, 8)] * 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "image.bin").write_bytes(bytes(180 * CHANNELS * 2))
    (folder / "label.bin").write_bytes(bytes(180))
    return folder / "image.bin", folder / "label.bin"


@given(case=st.integers(0, 1), low=corner, size=st.tuples(*[st.integers(0, 7)] * 3))
def test_every_voxel_of_the_box_is_asked_for_and_few_more(
    files: tuple[Path, Path], case: int, low: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    asked = {"image": np.zeros(180 * CHANNELS * 2, bool), "label": np.zeros(180, bool)}
    held = Pages(*files, [0, 1], shapes=SHAPES, offsets=OFFSETS, voxel_bytes=2, num_channels=CHANNELS)
    names = dict(zip(held.handles, asked, strict=True))

    def advise(handle: int, start: int, count: int) -> None:
        assert start >= 0
        assert count > 0
        asked[names[handle]][start : start + count] = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_advise", advise)
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


def test_cases_in_memory_are_not_asked_for(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_advise", lambda *_: pytest.fail("asked"))
    held = Pages(*files, [1], shapes=SHAPES, offsets=OFFSETS, voxel_bytes=2, num_channels=CHANNELS)
    held.want(0, (0, 0, 0), (3, 4, 5))


def test_its_files_are_closed_with_it(files: tuple[Path, Path]) -> None:
    held = Pages(*files, [0], shapes=SHAPES, offsets=OFFSETS, voxel_bytes=2, num_channels=CHANNELS)
    held.want(0, (0, 0, 0), (3, 4, 5))
    handle = held.handles[0]
    del held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
