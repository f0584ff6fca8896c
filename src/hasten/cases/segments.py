"""Segments of 3D Slicer in NRRD files: their names say which class they are, as values differ from file to file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hasten.cases.types import Segment, Volume
from hasten.config.patterns import first_few

_FIELD = re.compile(r"Segment(\d+)_(?:ID|Name|LabelValue|Layer)")


def parse_segments(fields: Mapping[str, str], path: Path) -> tuple[Segment, ...]:
    """The segments that the fields of a header describe; none in other files. Raises ValueError for damaged fields.

    Before it had layers, Slicer gave each segment a component of its own, of the value 1.
    """
    segments = []
    for number in sorted({int(match[1]) for key in fields if (match := _FIELD.fullmatch(key))}):
        start = f"Segment{number}_"
        name = fields.get(f"{start}Name") or fields.get(f"{start}ID", "")
        layer = 0 if f"{start}LabelValue" in fields else number
        try:
            value, layer = int(fields.get(f"{start}LabelValue", 1)), int(fields.get(f"{start}Layer", layer))
        except ValueError as error:
            raise ValueError(f"{path}: has damaged fields of segment {number} ({error}); export it again.") from error
        segments.append(Segment(name, value, layer))
    return tuple(segments)


def present_segments(volume: Volume, path: Path) -> list[Segment]:
    """Segments of a file that have voxels. Raises ValueError for voxels that no segment describes."""
    layers = range(len(volume.array))
    found = {layer: set(np.unique(volume.array[layer]).tolist()) for layer in layers}
    nameless = [value for layer in layers for value in found[layer] - {s.value for s in volume.segments} - {0}]
    if nameless:
        raise ValueError(
            f"{path}: names its segments, but holds the value {nameless[0]:g}, which is none of them; export it again."
        )
    return [segment for segment in volume.segments if segment.value in found.get(segment.layer, ())]


def by_name(volume: Volume, labels: Mapping[int, str], path: Path, ignore: int | None = None) -> np.ndarray:
    """The label map (1, D, H, W) of a file with segments: to each the value that `labels` gives its name.

    Upper and lower case are alike. The only segment is the only class, whatever its name. Raises ValueError for other
    segments that are no class, and for segments that overlap.
    """
    value_of = {name.strip().lower(): value for value, name in labels.items()}
    present = present_segments(volume, path)
    found = [(s, value_of.get(s.name.strip().lower(), ignore if s.value == ignore else None)) for s in present]
    of_class = {segment: value for segment, value in found if value is not None}
    strange = [segment for segment in present if segment not in of_class]
    if strange and len(present) == 1 and len(labels) == 2:
        of_class[present[0]] = max(labels)
    elif strange:
        raise ValueError(
            f"{path}: holds the segments {first_few([s.name for s in strange])}, which are none of the classes "
            f"({first_few(list(labels.values()))}); give segments and classes the same names."
        )
    result = np.zeros(volume.array.shape[1:], np.min_scalar_type(max(*labels, ignore or 0)))
    taken: list[tuple[Segment, np.ndarray]] = []
    for segment in present:
        mask = volume.array[segment.layer] == segment.value
        other = next((each for each, voxels in taken if each.layer != segment.layer and (mask & voxels).any()), None)
        if other is not None:
            raise ValueError(
                f"{path}: its segments {other.name} and {segment.name} overlap, which a label map can't hold; export "
                "each case as one layer (Slicer: Segmentations > Export to labelmap), with a class of its own for both."
            )
        taken.append((segment, mask))
        result[mask] = of_class[segment]
    return result[None]
