from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from hasten.cases.labels import IGNORED
from hasten.cases.types import Case, Volume
from hasten.config.schema import PrepareConfig
from hasten.evaluation.dice import OwnLabels, counts_of, is_resampled
from hasten.prepare.case import prepare_case, restore_label

LABELS = {0: "background", 3: "a", 7: "b"}
IGNORE = 9
SPEC = PrepareConfig(spacing=(3.0, 1.5, 1.5), intensity="zscore", window=(0.0, 1.0), crop_foreground=True)


@pytest.mark.parametrize("ignore", [None, IGNORE])
@pytest.mark.parametrize("regions", [(), ((1, 2), (2,))])
@pytest.mark.parametrize("room", [0, 1 << 20])
def test_counts_are_those_on_the_voxels_of_the_file(
    tmp_path: Path, ignore: int | None, regions: tuple[tuple[int, ...], ...], room: int
) -> None:
    rng = np.random.default_rng(0)
    values = np.array([0, 3, 7] + [IGNORE] * (ignore is not None))
    label = values[rng.integers(0, len(values), (12, 10, 14))].astype(np.uint8)  # x, y, z
    image = np.zeros((1, 14, 10, 12), np.float32)
    image[0, 2:12, 1:9, 3:11] = rng.normal(size=(10, 8, 8)) + 9  # labelled voxels lie around it, too
    affine = np.diag([-1.0, 1.0, 2.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(label, affine), tmp_path / "label.nii.gz")
    case = Case(id="a", image=(tmp_path / "image.nii.gz",), label=tmp_path / "label.nii.gz")
    geometry = prepare_case(Volume(image, affine), None, id="a", spec=SPEC).geometry
    assert is_resampled(geometry)
    assert not is_resampled(replace(geometry, shape=geometry.crop_shape))
    assert geometry.crop_shape != geometry.source_shape

    index = np.zeros(256, np.uint8)
    index[[3, 7, IGNORE]] = (1, 2, IGNORED)
    source = torch.from_numpy(index[label.T])
    if regions:
        predicted = torch.from_numpy(rng.integers(0, 2, (2, *geometry.crop_shape)).astype(bool))
        restored = np.stack([restore_label(mask.numpy().astype(np.uint8), geometry, (0, 1)) for mask in predicted])
        on_file = torch.from_numpy(restored).bool()
    else:
        predicted = torch.from_numpy(rng.integers(0, 3, geometry.crop_shape).astype(np.uint8))
        on_file = torch.from_numpy(restore_label(predicted.numpy(), geometry, (0, 1, 2)))
    expected = counts_of(
        on_file, source, num_classes=3, regions=regions, ignore_index=IGNORED if ignore is not None else None
    )
    own = OwnLabels(LABELS, ignore=ignore, regions=regions)
    own._room = room
    for _ in range(2):  # the second time from memory, where there is room
        assert torch.equal(own.counts(predicted, case, geometry), expected)
    assert len(own._kept) == bool(room)

    nibabel.save(nibabel.Nifti1Image(label[1:], affine), tmp_path / "label.nii.gz")
    with pytest.raises(ValueError, match=r"label\.nii\.gz: was changed"):
        OwnLabels(LABELS, ignore=ignore, regions=regions).counts(predicted, case, geometry)
