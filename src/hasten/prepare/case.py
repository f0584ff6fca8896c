"""Prepares a case for storage (orients, crops, resamples, scales), and maps a predicted label map back to its file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hasten.cases.read import read_image, read_label
from hasten.cases.types import Case, Volume
from hasten.config.scalings import Scaling, scalings
from hasten.config.schema import PrepareConfig, triple
from hasten.prepare.foreground import Box, foreground_box
from hasten.prepare.intensity import check_outliers, write_scaled
from hasten.prepare.orient import orient, orientation_of, unorient
from hasten.prepare.resample import resample_label, resampled_shape, slabs
from hasten.prepare.threads import one_torch_thread
from hasten.prepare.types import Geometry, PreparedCase


def load_prepared(
    case: Case, labels: dict[int, str], spec: PrepareConfig, *, ignore: int | None = None
) -> PreparedCase:
    """Read a case's files and prepare them. `labels`: label value to class name; `ignore`: one that becomes IGNORED.

    Raises ValueError naming a file.
    """
    image = read_image(case)
    label = None if case.label is None else read_label(case, labels, image, ignore)
    try:
        return prepare_case(image, label, id=case.id, spec=spec)
    except ValueError as error:
        raise ValueError(f"{case.image[0]}: {error}") from error


def prepare_case(image: Volume, label: np.ndarray | None, *, id: str, spec: PrepareConfig) -> PreparedCase:
    """Orient, crop to the foreground, resample and scale one case; the label alike, as `resample_label` does.

    `label` is (D, H, W) uint8, class index or IGNORED, in the image's own voxels. `spec` has every field set. Cropping
    comes first so that nothing is computed for air. May be called from any number of threads; each computes on its own
    core. Raises ValueError that names the case.
    """
    assert spec.spacing is not None
    assert spec.intensity is not None
    assert spec.crop_foreground is not None
    scaled = scalings(spec, len(image.array))
    try:
        return _prepare(image, label, id, spec, scaled)
    except ValueError as error:
        raise ValueError(f"case {id}: {error}") from error


def restore_label(label: np.ndarray, geometry: Geometry, label_values: Sequence[int]) -> np.ndarray:
    """A predicted label map in the voxel grid of its source file.

    `label` is (D, H, W) class index, of geometry.crop_shape; `label_values` holds the label value of each class index,
    background first. Returns geometry.source_shape, C-contiguous, in the smallest integer dtype that holds the values.
    Voxels outside the foreground box become the background.
    """
    assert label.shape == geometry.crop_shape, f"label {label.shape}, box {geometry.crop_shape}"
    values = np.array(label_values, np.result_type(*map(np.min_scalar_type, label_values)))
    # Class indices are mostly the values themselves, and then need no pass over all voxels.
    same = np.array_equal(values, np.arange(len(values)))
    restored = label.astype(values.dtype, copy=False) if same else values[label]
    oriented_shape = tuple(geometry.source_shape[axis] for axis in geometry.permute)
    if restored.shape != oriented_shape:
        volume = np.full(oriented_shape, values[0])
        volume[tuple(slice(a, a + n) for a, n in zip(geometry.crop_start, geometry.crop_shape, strict=True))] = restored
        restored = volume
    return np.ascontiguousarray(unorient(restored, geometry.permute, geometry.flip))


def _prepare(
    image: Volume, label: np.ndarray | None, id: str, spec: PrepareConfig, scaled: Sequence[Scaling]
) -> PreparedCase:
    assert spec.spacing is not None
    source_shape = triple(image.array.shape[1:])
    assert label is None or label.shape == source_shape
    for channel, (volume, scaling) in enumerate(zip(image.array, scaled, strict=True)):
        if scaling.kind == "zscore":
            check_outliers(volume, channel)
    permute, flip = orientation_of(image.affine, spec.orientation, source_shape)
    turned = orient(image.array, permute, flip)
    whole: Box = (slice(None), slice(None), slice(None))
    thresholds = [scaling.window[0] if scaling.window else None for scaling in scaled]
    box = foreground_box(turned, thresholds) if spec.crop_foreground else whole
    cropped = turned[:, box[0], box[1], box[2]]
    original = image.spacing
    spacing = triple(original[axis] for axis in permute)
    shape = resampled_shape(triple(cropped.shape[1:]), spacing, spec.spacing)

    prepared = np.empty((len(cropped), *shape), spec.dtype)
    with one_torch_thread():
        for volume, out, scaling in zip(cropped, prepared, scaled, strict=True):
            write_scaled(slabs(volume, shape), out, scaling)
    if label is not None:
        label = np.ascontiguousarray(resample_label(orient(label, permute, flip)[box], shape))
        assert label.dtype == np.uint8
    geometry = Geometry(
        source_shape=source_shape,
        source_affine=tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in image.affine),
        permute=permute,
        flip=flip,
        crop_start=triple(part.start or 0 for part in box),
        crop_shape=triple(cropped.shape[1:]),
        spacing=spacing,
        shape=shape,
    )
    return PreparedCase(id, prepared, label, geometry)
