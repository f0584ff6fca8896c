"""The regions of a set of cases: overlapping classes in terms of the stored class indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hasten.cases.types import CaseSet
from hasten.config.regions import Regions, painted_values, region_mistakes
from hasten.config.schema import DataConfig


@dataclass(frozen=True, slots=True)
class Region:
    """One of several classes that may overlap in a voxel."""

    name: str
    members: tuple[int, ...]
    """Class indices that belong to it, rising."""
    painted: int
    """Class index in a label map where this is the last region of a voxel."""


def with_regions(case_set: CaseSet, data: DataConfig) -> CaseSet:
    """The cases with the regions of the configuration. Raises ValueError as `resolve_regions` does."""
    regions, values = case_set.regions, case_set.region_values
    where = f"{case_set.source}: regions"
    if data.regions is not None:
        regions, values, where = data.regions, {}, "data.regions"
    if data.region_values is not None:
        values = data.region_values
    resolve_regions(regions, values, case_set.labels, where)
    return dataclasses.replace(case_set, regions=dict(regions), region_values=dict(values))


def regions_of(case_set: CaseSet) -> tuple[Region, ...]:
    """Regions of the set in their order; empty where the classes do not overlap."""
    return resolve_regions(case_set.regions, case_set.region_values, case_set.labels, f"{case_set.source}: regions")


def resolve_regions(
    regions: Regions, values: Mapping[str, int], labels: Mapping[int, str], where: str
) -> tuple[Region, ...]:
    """Regions of label values as those of class index. labels: label value to name, 0 included.

    Raises ValueError, beginning with `where`, for a value that is not declared and whatever `region_mistakes` finds.
    """
    unknown = {name: [value for value in members if value not in labels] for name, members in regions.items()}
    mistakes = [
        f'"{name}" holds {", ".join(map(str, missing))}, declared are the label values '
        f"{', '.join(map(str, sorted(labels)))}; correct the region, or declare the label"
        for name, missing in unknown.items()
        if missing
    ] or list(region_mistakes(regions, values))
    if mistakes:
        raise ValueError(f"{where}: {'; '.join(mistakes)}")
    index = {value: position for position, value in enumerate(sorted(labels))}
    painted = painted_values(regions, values)
    return tuple(
        Region(name=name, members=tuple(sorted(index[value] for value in members)), painted=index[painted[name]])
        for name, members in regions.items()
    )


def paint(masks: np.ndarray, regions: Sequence[Region]) -> np.ndarray:
    """Region masks (R, ...) bool as one label map (...) uint8 of class index; later regions overwrite earlier ones."""
    label = np.zeros(masks.shape[1:], np.uint8)
    for mask, region in zip(masks, regions, strict=True):
        label[mask] = region.painted
    return label
