"""Phantoms: one contract for all of them, and what makes each hard enough to learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hasten.cases.read import read_image, read_label
from hasten.cases.sources import load_case_set
from hasten.phantoms.cells import make_cells, write_cells
from hasten.phantoms.hippocampus import LABELS as PARTS
from hasten.phantoms.hippocampus import make_hippocampus, write_hippocampi
from hasten.phantoms.organs import make_phantom, write_phantoms
from hasten.phantoms.spheres import write_spheres
from hasten.phantoms.tumours import CHANNELS, LABELS, make_tumour_phantom, write_tumour_phantoms


class Kind(NamedTuple):
    make: Callable[..., tuple[np.ndarray, np.ndarray]]
    write: Callable[..., Path]
    options: dict[str, Any]
    """Of both, for a small one."""
    labels: dict[int, str]
    channels: tuple[str, ...]
    wrong: list[dict[str, Any]]


KINDS = {
    "spleen": Kind(
        make_phantom, write_phantoms, {"shape": (24, 40, 44), "spacing": (2.5, 1.0, 1.5)},
        {0: "background", 1: "spleen"}, ("CT",), [{"shape": (4, 40, 40)}, {"shape": (24, 8, 40)}, {"num_cases": 0}],
    ),
    "tumours": Kind(
        make_tumour_phantom, write_tumour_phantoms, {"shape": (16, 20, 18), "spacing": (8.0, 9.0, 8.0)}, LABELS,
        CHANNELS, [{"shape": (8, 32, 32)}, {"num_cases": 0}],
    ),
    "hippocampus": Kind(
        make_hippocampus, write_hippocampi, {"shape": (20, 24, 20)}, PARTS, ("MRI",),
        [{"shape": (8, 32, 32)}, {"num_cases": 0}],
    ),
    "cells": Kind(
        make_cells, write_cells, {"shape": (64, 80), "radius": 12.0}, {0: "background", 1: "cell"}, ("image",),
        [{"shape": (8, 90)}, {"radius": 1.0}, {"filled": 0.0}, {"filled": 1.5}, {"num_cases": 0}, {"value": 256}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_phantom_is_a_pure_function_of_its_arguments(name: str) -> None:
    make, options = KINDS[name].make, KINDS[name].options
    image, label = make(3, **options)
    make(5, **options)
    for one, other in zip((image, label), make(3, **options), strict=True):
        np.testing.assert_array_equal(one, other)
    for other, _ in (make(4, **options), make(3, **options, seed=1)):
        assert other.shape != image.shape or (other != image).any()


@pytest.mark.parametrize("name", KINDS)
def test_a_written_set_holds_what_is_made_whatever_the_threads(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    for threads in (1, 3):
        kind.write(tmp_path / str(threads), num_cases=3, num_threads=threads, seed=2, **kind.options)
    cases = load_case_set(tmp_path / "1")
    assert (cases.labels, cases.channels) == (kind.labels, kind.channels)
    assert len(cases.cases) == 3
    for index, case in enumerate(cases.cases):
        assert case.id.endswith(f"_{index:03d}")
        image, label = kind.make(index, seed=2, **kind.options)
        read = read_image(case)
        assert read.array.dtype == image.dtype
        np.testing.assert_array_equal(read.array.squeeze(), image)
        np.testing.assert_array_equal(read_label(case, cases.labels, read).squeeze(), label)
        if "spacing" in kind.options:
            assert read.spacing == pytest.approx(kind.options["spacing"])
    for path in (each for each in (tmp_path / "1").rglob("*") if each.is_file()):
        assert path.read_bytes() == (tmp_path / "3" / path.relative_to(tmp_path / "1")).read_bytes()


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, kind in KINDS.items() for wrong in kind.wrong])
def test_impossible_phantoms_are_refused(tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    kind = KINDS[name]
    with pytest.raises(ValueError, match="needs"):
        kind.write(tmp_path, **{"num_cases": 1, **kind.options, **wrong})


def test_slices_of_a_spleen_and_cells_of_another_value(tmp_path: Path) -> None:
    cases = load_case_set(write_phantoms(tmp_path / "flat", num_cases=3, shape=(1, 64, 80)))
    assert cases.spatial_dims == 2
    assert all(read_label(case, cases.labels, read_image(case)).any() for case in cases.cases)
    cells = load_case_set(write_cells(tmp_path / "cells", num_cases=1, shape=(64, 80), radius=12, value=255))
    assert cells.labels == {0: "background", 255: "cell"}


def test_spheres_have_the_names_of_monais_test(tmp_path: Path) -> None:
    cases = load_case_set(write_spheres(tmp_path, num_cases=12, shape=(61, 61, 61)))
    assert sorted(case.id for case in cases.cases)[:4] == ["img0", "img1", "img10", "img11"]
    with pytest.raises(ValueError, match="minimal size"):
        write_spheres(tmp_path, num_cases=1, shape=(60, 80, 80))
