"""A Geometry as plain JSON values, and back without loss."""

from __future__ import annotations

from typing import Any

from hasten.prepare.types import Geometry


def geometry_to_dict(geometry: Geometry) -> dict[str, Any]:
    """Lists and numbers only. JSON keeps float64 exactly, so the round trip is exact."""
    return {
        "source_shape": list(geometry.source_shape),
        "source_affine": [list(row) for row in geometry.source_affine],
        "permute": list(geometry.permute),
        "flip": list(geometry.flip),
        "crop_start": list(geometry.crop_start),
        "crop_shape": list(geometry.crop_shape),
        "spacing": list(geometry.spacing),
        "shape": list(geometry.shape),
    }


def geometry_from_dict(values: dict[str, Any]) -> Geometry:
    """The inverse of `geometry_to_dict`, also after a trip through JSON."""
    flat = {key: tuple(value) for key, value in values.items()}
    return Geometry(**{**flat, "source_affine": tuple(tuple(row) for row in values["source_affine"])})
