"""Computes the fingerprint of a set of cases from every header and the voxels of a few."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from hasten.cases.entries import batched
from hasten.cases.formats import read_file_header
from hasten.cases.labels import IGNORED
from hasten.cases.read import check_num_channels, misplaced_files, read_image, read_label, refuse_misplaced
from hasten.cases.types import Case, CaseSet, Volume, is_flat, spacing_of
from hasten.config.fingerprint import COARSER, Fingerprint, coarser_spacing
from hasten.config.patterns import first_few
from hasten.config.schema import Spacing, Triple, triple
from hasten.observe.cores import usable_cores
from hasten.prepare.foreground import box_above, max_profiles, union
from hasten.prepare.orient import orient, orientation_of
from hasten.prepare.resample import nearest_index, resample_label, resampled_shape

_VOXELS = 200_000
"""Voxels of a case and channel (and as many of its foreground) that the statistics are estimated from."""

_SAMPLED_VOXELS = 100e6
"""Voxels that are read in all: every case is read once more when the cache is filled, so this is time spent twice."""

_COMPARED_CASES, _COMPARED_VOXELS = 4, 20e6
"""Sampled cases whose labels are brought to coarser grids and back, at most; fewer where they have so many voxels."""
_MARGIN = 4
"""Voxels around the labelled ones that take part in that."""

_QUANTILES = {"p0_5": 0.5, "p50": 50.0, "p99_5": 99.5}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sampled:
    """Statistics of a case whose voxels were read. Lists have one entry per channel."""

    lows: list[float]
    highs: list[float]
    voxels: list[np.ndarray]
    foreground: list[np.ndarray]
    profiles: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    num_voxels: int
    box_mm: Spacing | None
    """Size of the box of all labelled voxels, turned to RAS; None without any."""
    kept_dice: dict[float, dict[int, float]]
    """Dice that a coarser grid keeps, by factor and class index; of some of the sampled cases."""


def take_fingerprint(case_set: CaseSet, *, max_sampled: int | None = None) -> Fingerprint:
    """Look at a set of cases as far as a plan needs it.

    Shapes and spacings come from every case's header and are those after turning to RAS. The rest comes from the voxels
    of at most `max_sampled` cases (by default 4 to 20, about 100 million voxels), evenly spaced over the list. The
    images' min and max are exact. Every other figure of intensity is estimated from about 200 000 voxels of each case
    and channel, a fixed stride apart, and from as many of its labelled voxels, so that every case counts alike whatever
    its size. Without any labelled voxel the foreground's figures repeat the image's. `crop_fraction` is for the box
    above each channel's own minimum, and for CT (by its name, or `case_set.modality` of the only channel), where air is
    not the minimum, above the foreground's 0.5th percentile.
    Raises ValueError for an empty set, for a case with other channels than the set's, for files that do not lie where
    their case's image does, and what reading raises.
    """
    if not case_set.cases:
        raise ValueError(f"{case_set.source}: holds no cases; check data.source")
    cases = case_set.cases
    workers = usable_cores()
    with ThreadPoolExecutor(workers) as pool:
        headers: list[_Header] = []
        beside: dict[Path, float] = {}
        for some, misplaced in pool.map(
            lambda some: _oriented_headers(some, case_set.spatial_dims), batched(cases, workers)
        ):
            headers += some
            beside |= misplaced
        _check_channels(case_set, [channels for _, _, channels in headers])
        refuse_misplaced(beside, case_set.source)
        voxels = sum(math.prod(shape) for shape, _, _ in headers) / len(headers)
        if max_sampled is None:
            max_sampled = max(4, min(20, int(_SAMPLED_VOXELS / voxels)))
        count = min(max(1, max_sampled), len(cases))
        chosen = [cases[i] for i in nearest_index(len(cases), count)]
        num_compared = min(count, _COMPARED_CASES, max(1, int(_COMPARED_VOXELS / voxels)))
        compared = set(nearest_index(count, num_compared).tolist())
        sampled = list(pool.map(lambda at: _sample(chosen[at], case_set, compare_grids=at in compared), range(count)))

    channels = range(len(sampled[0].voxels))
    whole = [
        _statistics([s.voxels[c] for s in sampled], min(s.lows[c] for s in sampled), max(s.highs[c] for s in sampled))
        for c in channels
    ]
    labelled = [_foreground_statistics([s.foreground[c] for s in sampled], whole[c]) for c in channels]
    boxes = [s.box_mm for s in sampled if s.box_mm is not None]
    names = (case_set.modality,) if len(channels) == 1 else case_set.channels
    thresholds = [
        statistics["p0_5"] if name.strip().upper().startswith("CT") else None
        for name, statistics in zip(names, labelled, strict=True)
    ]
    return Fingerprint(
        name=case_set.name,
        num_cases=len(cases),
        spatial_dims=case_set.spatial_dims,
        modality=case_set.modality,
        channels=case_set.channels,
        labels=dict(case_set.labels),
        shapes=tuple(shape for shape, _, _ in headers),
        spacings=tuple(spacing for _, spacing, _ in headers),
        sampled_cases=count,
        intensity=_by_statistic(whole),
        foreground_intensity=_by_statistic(labelled),
        crop_fraction=float(np.mean([_crop_share(s, thresholds) for s in sampled])),
        foreground_box=triple(np.median(boxes, axis=0).tolist()) if boxes else (0.0, 0.0, 0.0),
        kept_dice=_mean_kept([s.kept_dice for s in sampled], sorted(case_set.labels)),
        misplaced={str(path): distance for path, distance in beside.items()},
    )


def fingerprint_to_dict(fingerprint: Fingerprint) -> dict[str, Any]:
    """Plain values for JSON, shapes and spacings that cases share once. JSON keeps float64 exactly."""
    pairs = list(zip(fingerprint.shapes, fingerprint.spacings, strict=True))
    number = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}
    values = {each.name: getattr(fingerprint, each.name) for each in fields(fingerprint)}
    return {
        **values,
        "shapes": [shape for shape, _ in number],
        "spacings": [spacing for _, spacing in number],
        "of_case": [number[pair] for pair in pairs],
    }


def fingerprint_from_dict(values: dict[str, Any]) -> Fingerprint:
    """The inverse of `fingerprint_to_dict`, also from JSON, where keys are strings and tuples are lists."""
    of_case = values["of_case"]
    facts = {name: value for name, value in values.items() if name != "of_case"}
    facts |= {name: [facts[name][number] for number in of_case] for name in ("shapes", "spacings")}
    return TypeAdapter(Fingerprint).validate_python(facts)


_Header = tuple[Triple, Spacing, int]


def _oriented_headers(cases: Sequence[Case], spatial_dims: int) -> tuple[list[_Header], dict[Path, float]]:
    """Shape and spacing of each case, turned to RAS, and channels of its first file; and the `misplaced_files`.

    Equal headers, as tiles have, give the same objects. Raises ValueError for a slice across H or W among 3-D images.
    """
    known: dict[tuple[Triple, int, bytes], _Header] = {}
    headers: list[_Header] = []
    beside: dict[Path, float] = {}
    for case in cases:
        header = shape, channels, affine = read_file_header(case.image[0])
        beside |= misplaced_files(case, header)
        key = shape, channels, affine.tobytes()
        if key not in known:
            if spatial_dims == 3 and is_flat(shape) and shape[0] > 1:
                raise ValueError(
                    f"{case.image[0]}: is one slice, of shape {shape} (D, H, W), among 3-D images; "
                    "keep 2-D and 3-D cases in separate sources"
                )
            known[key] = *_oriented(case, shape, affine), channels
        headers.append(known[key])
    return headers, beside


def _check_channels(case_set: CaseSet, channels: Sequence[int]) -> None:
    """Raise ValueError that names the files with another number of channels than most have."""
    (usual, count), *others = Counter(channels).most_common()
    if others:
        odd = [
            f"{case.image[0].name} ({number})"
            for case, number in zip(case_set.cases, channels, strict=True)
            if number != usual
        ]
        raise ValueError(
            f"{case_set.source}: {count} of {len(channels)} images have {usual} channel{'s' * (usual > 1)}, and "
            f"{first_few(odd)} another number; convert these, or take them out"
        )


def _oriented(case: Case, shape: Triple, affine: np.ndarray) -> tuple[Triple, Spacing]:
    try:
        (d, h, w), _ = orientation_of(affine, "RAS", shape)
    except ValueError as error:
        raise ValueError(f"{case.image[0]}: {error}") from error
    spacing = spacing_of(affine)
    return (shape[d], shape[h], shape[w]), (spacing[d], spacing[h], spacing[w])


def _sample(case: Case, case_set: CaseSet, *, compare_grids: bool) -> _Sampled:
    image = read_image(case)
    check_num_channels(len(image.array), case, case_set)
    volume = None if case.label is None else read_label(case, case_set.labels, image, case_set.ignore)
    box_mm, kept_dice = None, dict[float, dict[int, float]]()
    if volume is not None and case_set.spatial_dims == 3:
        labelled, spacing = _labelled_part(volume, image)
        if labelled is not None:
            box_mm = triple(side * mm for side, mm in zip(labelled.shape, spacing, strict=True))
            kept_dice = _kept_dice(np.pad(labelled, _MARGIN), spacing) if compare_grids else {}
    label = None if volume is None else volume.reshape(-1)
    where = np.empty(0, np.int64)
    if label is not None:
        where = np.flatnonzero(label if case_set.ignore is None else (label > 0) & (label != IGNORED))
        where = where[:: max(1, len(where) // _VOXELS)]
    flat = [channel.reshape(-1) for channel in image.array]
    stride = _stride(image.array.shape[1:])
    return _Sampled(
        lows=[float(channel.min()) for channel in flat],
        highs=[float(channel.max()) for channel in flat],
        voxels=[channel[::stride].astype(np.float32) for channel in flat],
        foreground=[channel[where].astype(np.float32) for channel in flat],
        profiles=[max_profiles(channel) for channel in image.array],
        num_voxels=flat[0].size,
        box_mm=box_mm,
        kept_dice=kept_dice,
    )


def _labelled_part(label: np.ndarray, image: Volume) -> tuple[np.ndarray | None, Spacing]:
    """The box of all labelled voxels, turned to RAS, None without any; and the spacing (D, H, W) of its voxels."""
    permute, flip = orientation_of(image.affine, "RAS", label.shape)
    turned = orient(label, permute, flip)
    box = box_above(max_profiles((turned > 0) & (turned != IGNORED)), 0)
    return None if box is None else turned[box], triple(image.spacing[axis] for axis in permute)


def _kept_dice(label: np.ndarray, spacing: Spacing) -> dict[float, dict[int, float]]:
    """Dice of (D, H, W) labels that were there and back, by the factor of `coarser_spacing` and class index.

    Up and down as preparation and export interpolate: this is what a network whose every label is right would get.
    """
    kept: dict[float, dict[int, float]] = {}
    size = np.bincount(label.reshape(-1), minlength=256)
    classes = [index for index in np.flatnonzero(size).tolist() if index not in (0, IGNORED)]
    for factor in COARSER:
        shape = resampled_shape(triple(label.shape), spacing, coarser_spacing(spacing, factor))
        back = resample_label(resample_label(label, shape), triple(label.shape))
        both = np.bincount(label[label == back], minlength=256)
        # Voxels without annotation count nowhere.
        resampled_size = np.bincount(back[label != IGNORED], minlength=256)
        kept[factor] = {index: float(2 * both[index] / (size[index] + resampled_size[index])) for index in classes}
    return kept


def _mean_kept(cases: Sequence[dict[float, dict[int, float]]], values: Sequence[int]) -> dict[float, dict[int, float]]:
    """Mean over the cases that hold a class, by factor and label value. values: label value of each class index."""
    means: dict[float, dict[int, float]] = {}
    for factor in COARSER if any(cases) else ():
        rows = [case[factor] for case in cases if case]
        found = {index: [row[index] for row in rows if index in row] for index in range(1, len(values))}
        means[factor] = {values[index]: float(np.mean(dice)) for index, dice in found.items() if dice}
    return means


def _stride(shape: Sequence[int]) -> int:
    """A stride that samples about `_VOXELS` voxels and avoids the same column of every row."""
    step = max(1, math.prod(shape) // _VOXELS)
    while step > 1 and math.gcd(step, shape[1] * shape[2]) > 1:
        step += 1
    return step


def _statistics(parts: list[np.ndarray], low: float, high: float) -> dict[str, float]:
    values = np.concatenate(parts)
    quantiles = np.percentile(values, list(_QUANTILES.values()))
    return {
        "min": low,
        **{name: float(value) for name, value in zip(_QUANTILES, quantiles, strict=True)},
        "max": high,
        "mean": float(values.mean(dtype=np.float64)),
        "std": float(values.std(dtype=np.float64)),
    }


def _foreground_statistics(parts: list[np.ndarray], otherwise: dict[str, float]) -> dict[str, float]:
    parts = [part for part in parts if len(part)]
    if not parts:
        return otherwise
    return _statistics(parts, float(min(part.min() for part in parts)), float(max(part.max() for part in parts)))


def _by_statistic(channels: list[dict[str, float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(channel[name] for channel in channels) for name in channels[0]}


def _crop_share(case: _Sampled, thresholds: Sequence[float | None]) -> float:
    """The share of a case's voxels in the box that `foreground_box` would find."""
    box = union(
        [
            box_above(profiles, low if threshold is None else threshold)
            for profiles, low, threshold in zip(case.profiles, case.lows, thresholds, strict=True)
        ]
    )
    return 1.0 if box is None else math.prod(part.stop - part.start for part in box) / case.num_voxels
