"""Label maps and probabilities of arrays, without files."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.read import check_finite
from hasten.cases.types import Volume
from hasten.prediction.ensemble import read_members, with_infer
from hasten.prediction.model import Model, load_members, predict_labels
from hasten.prediction.postprocess import Cleanings, postprocessed, read_cleanings
from hasten.prepare.case import prepare_case
from hasten.runtime.device import current_device

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Predictor:
    """A trained network that is called with arrays; `load_predictor` makes one."""

    model: Model
    cleanings: Cleanings
    """What is done to the label maps."""

    def __call__(
        self,
        array: Any,
        *,
        spacing: Sequence[float] | None = None,
        affine: Any = None,
        probabilities: bool = False,
    ) -> np.ndarray:
        """The label map of an image on its own voxels, in label values of the training set, as `hasten.predict` gives.

        array: (D, H, W), or (C, D, H, W) with the channels of the training; in 2-D (H, W) or (C, H, W). Any integer or
        float dtype, in the units of the training images; NumPy or whatever `numpy.asarray` takes. D, H, W are the z, y,
        x of a file: of nibabel's arrays, the transpose.

        affine: (4, 4), voxel index (x, y, z) to mm, as in nibabel; the array may lie in space in any way. spacing:
        (D, H, W) in mm, or in 2-D (H, W), of an array whose axes already lie as `prepare.orientation` says: with RAS,
        W to the right, H to the front, D upwards. One of the two is needed in 3-D; pixels of 2-D count as 1 mm.

        probabilities: return float32 (K, D, H, W), in 2-D (K, H, W), instead, before any post-processing: of the
        classes in the order of the label values, or of the regions. The label map has the highest class.

        Raises ValueError for other channels or dimensions, NaN or infinite voxels and an impossible spacing or affine.
        """
        image, where_known = self._image(array), affine is not None
        flat = self.model.inference.spatial_dims == 2
        if where_known == (spacing is not None) and (where_known or not flat):
            raise ValueError(f"spacing, affine: give one of them{', not both' if where_known else ''}")
        matrix = _affine(affine) if where_known else _of_spacing(spacing, flat)
        check_finite(image, "array")
        spec = self.model.prepare
        if not where_known:
            spec = dataclasses.replace(spec, orientation=None)
        volume = Volume(image, matrix)
        prepared = prepare_case(volume, None, id="array", spec=spec)
        chances = None
        if probabilities:
            chances = np.zeros((len(self.model.classes), *image.shape[1:]), np.float32)
        with current_device(self.model.inference.device):
            label, _, warnings = predict_labels(prepared, self.model, probabilities=chances)
        for warning in filter(None, warnings):
            log.warning("array: %s", warning)
        result = postprocessed(label, self.cleanings, volume.spacing) if chances is None else chances
        return result.squeeze(-3) if flat else result

    def _image(self, array: Any) -> np.ndarray:
        """(C, D, H, W)."""
        image, dims = np.asarray(array), self.model.inference.spatial_dims
        channels, axes = self.model.channels, "D, H, W" if dims == 3 else "H, W"
        if image.dtype.kind not in "iuf":
            raise ValueError(f"array: holds {image.dtype}; give integers or floats")
        if image.ndim == dims:
            image = image[None]
        if image.ndim != dims + 1 or 0 in image.shape:
            raise ValueError(f"array: its shape is {np.shape(array)}; give ({axes}) or (C, {axes}), with voxels")
        if len(image) != len(channels):
            raise ValueError(
                f"array: {len(image)} channel{'' if len(image) == 1 else 's'} (its shape is {np.shape(array)}), but "
                f"the network was trained on {len(channels)} ({', '.join(channels)}); give (C, {axes}) with these"
            )
        return image if dims == 3 else image[:, None]


def _affine(affine: Any) -> np.ndarray:
    matrix = np.asarray(affine, np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or np.linalg.matrix_rank(matrix[:3, :3]) < 3:
        raise ValueError(f"affine: {matrix.tolist()} maps no volume; give (4, 4), voxel index (x, y, z) to mm")
    return matrix


def _of_spacing(spacing: Sequence[float] | None, flat: bool) -> np.ndarray:
    if spacing is None:
        return np.eye(4)
    sides = np.asarray(spacing, np.float64)
    if sides.shape != ((2,) if flat else (3,)) or not (np.isfinite(sides) & (sides > 0)).all():
        axes = "(H, W)" if flat else "(D, H, W)"
        raise ValueError(f"spacing: {spacing} is no voxel spacing; give {axes} in mm, each above 0")
    return np.diag([*sides[::-1], *(1.0,) * (4 - len(sides))])


def load_predictor(
    run: str | Path | Sequence[str | Path],
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    trust_changed_code: bool = False,
    postprocess: bool = True,
) -> Predictor:
    """A trained network for arrays, loaded once.

    Args:
        run, overrides, device, trust_changed_code, postprocess: as `hasten.predict` takes them; so are the label maps.

    Returns:
        `predictor(array, spacing=(D, H, W))`, which gives a label map.

    Raises:
        ValueError: as `hasten.predict`.

    Example:
        >>> import nibabel
        >>> predictor = hasten.load_predictor("runs/first")
        >>> volume = nibabel.load("case.nii.gz").get_fdata().transpose(2, 1, 0)
        >>> label = predictor(volume, spacing=(1, 1, 1))
    """
    members = with_infer(read_members(run), overrides)
    cleanings = read_cleanings(run, members[0].content["labels"]) if postprocess else {}
    model = load_members(members, device=device, trust_changed_code=trust_changed_code)
    return Predictor(model=model, cleanings=cleanings)
