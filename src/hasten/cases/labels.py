"""Label values: parses declarations, finds them in files, and maps them to class indices."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hasten.cases.entries import batched
from hasten.cases.formats import is_nifti, read_file
from hasten.cases.nifti import read_scaling
from hasten.cases.segments import by_name, present_segments
from hasten.cases.types import Volume
from hasten.config.patterns import first_few
from hasten.observe.cores import usable_cores

_UNDECLARED = 255
IGNORED = 255
"""The class index of voxels that are not annotated, whatever their label value in the files."""
MAX_CLASSES = 255
"""Class indices are stored as uint8, and one value marks undeclared or ignored labels."""
_MAX_FOUND = 32
_GRAYS = 5
"""Different values between 0 and 255 that are taken for those of a smoothed mask, if their steps differ."""
_MOST_NUMBERED, _DENSE = 5, 0.8
"""Values from 1 with few gaps (this share of them is there) that are classes, however many of them a file has."""
_COUNTS = 4
"""Different highest values of such files that are counts of single objects, as classes end at one."""
_SPREAD = 3
"""Difference of highest values, where each file has all values from 1, that classes at the end do not explain."""
_MAX_TABLE = 1 << 20
_MAX_DIGITS = 18
"""Digits of a label value at most, so that it fits into int64."""


def parse_labels(raw: object, where: str) -> dict[int, str]:
    """Label value to name, by value, from `{"0": "background"}`, nnU-Net's `{"background": 0}` or a list of names.

    `where` names the file in errors. The background 0 is added if it is not declared. Raises ValueError.
    """
    if isinstance(raw, list):
        raw = {str(value): name for value, name in enumerate(raw)}
    if not isinstance(raw, dict) or not raw:
        raise ValueError(f'{where}: "labels" must map values to names, as in {{"0": "background", "1": "spleen"}}.')
    labels: dict[int, str] = {}
    for key, entry in raw.items():
        by_value = isinstance(as_number(key), int)
        value, name = (as_number(key), entry) if by_value else (as_number(entry), key)
        named = isinstance(name, str | int) and str(name).strip() not in ("", "ignore")
        if type(value) is not int or value < 0 or not named:
            raise ValueError(
                f"{where}: the label {reprlib.repr(key)}: {reprlib.repr(entry)} is no class; give every class a name "
                'and a whole number from 0, as in {"1": "spleen"} or {"spleen": 1}, and set data.ignore to what is '
                "ignored."
            )
        if value in labels:
            raise ValueError(f'{where}: label value {value} is declared twice ("{labels[value]}", "{name}"); keep one.')
        labels[value] = str(name)
    labels.setdefault(0, "background")
    if len(set(labels.values())) < len(labels):
        raise ValueError(f"{where}: two label values share a name ({labels}); give every class its own.")
    if len(labels) < 2:
        raise ValueError(f"{where}: declares only the background; declare at least one class to segment.")
    if len(labels) > MAX_CLASSES:
        raise ValueError(f"{where}: declares {len(labels)} classes; at most {MAX_CLASSES} are supported.")
    return dict(sorted(labels.items()))


def as_number(value: object) -> object:
    """A number that is written as text, "255", or as 255.0, as an integer, also in a list; all else as it is."""
    if isinstance(value, list):
        return [as_number(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else value


def split_ignore(raw: object, where: str) -> tuple[object, int | None]:
    """The labels, their values as integers, without nnU-Net's label "ignore", and its value, or None.

    Raises ValueError where that is not one value of its own, or the background's.
    """
    if not isinstance(raw, dict):
        return raw, None
    raw = {key: entry if isinstance(as_number(key), int) else as_number(entry) for key, entry in raw.items()}
    if "ignore" not in raw:
        return raw, None
    value, rest = raw["ignore"], {name: entry for name, entry in raw.items() if name != "ignore"}
    if type(value) is not int or value < 1:
        raise ValueError(f'{where}: the label "ignore" is {value!r}; give it one value, above the background 0, as 4.')
    shared = [name for name, entry in rest.items() if value in (entry if isinstance(entry, list) else [entry])]
    if shared:
        raise ValueError(
            f'{where}: the label "ignore" has the value {value}, and so has "{shared[0]}"; give it the highest value, '
            "which no class has."
        )
    return rest, value


def find_labels(paths: Iterable[Path], where: str, ignore: int | None = None) -> dict[int, str]:
    """Labels of a set that declares none: the values in its label files, named class_1, class_2, ... by value.

    ignore: a value that is no class.
    """
    return name_values(find_values(paths), where, ignore)


def read_label_values(path: Path, labels: Mapping[int, str], ignore: int | None = None) -> Volume:
    """A label map (C, D, H, W) of integers; named segments (3D Slicer) have the values that `labels` gives their names.

    Raises ValueError for values that are no integers, and segments that are no class.
    """
    volume = read_file(path, label=True)
    array = by_name(volume, labels, path, ignore) if volume.segments else volume.array
    return Volume(as_integers(array, path), volume.affine)


class Found(NamedTuple):
    """A label value in the files."""

    path: Path
    """A file that holds it."""
    name: str = ""
    """Name of the segment, where the file states it."""


def find_values(paths: Iterable[Path]) -> dict[int, Found]:
    """The values in label files. Raises ValueError for too many, and non-integers.

    A named segment (3D Slicer) has one value in all files: that of the first, or the next that is free.
    """
    found: dict[int, Found] = {}
    sets: dict[tuple[int, ...], Path] = {}
    value_of = {"background": 0}
    plain: list[Path] = []

    def values_of(some: Sequence[Path]) -> list[tuple[Path, list[tuple[int, str]], bool]]:
        return [(path, *_values_and_names(read_file(path, label=True), path)) for path in some]

    num_threads = min(8, usable_cores())
    with ThreadPoolExecutor(num_threads) as pool:
        for path, values, is_named in chain.from_iterable(pool.map(values_of, batched(list(paths), num_threads))):
            if not is_named:
                plain.append(path)
                sets.setdefault(tuple(value for value, _ in values if value), path)
            for value, name in values:
                key = name.strip().lower()
                if name and key not in value_of:
                    value_of[key] = max(found) + 1 if value in found or value == 0 else value
                    found[value_of[key]] = Found(path, name)
                elif not name and value not in found:
                    found[value] = Found(path)
            if len(found) > _MAX_FOUND:
                break
    empty = sets.pop((), None) is not None
    _check_classes(sorted(found), sets, repeated=len(plain) > len(sets) + empty)
    named = next((each for each in found.values() if each.name), None)
    if named and plain:
        raise ValueError(
            f"{named.path}: names its segments ({named.name}, ...), but {plain[0]} holds values without names, so "
            "which are the same? Save all with names, or declare the classes in a labels.json."
        )
    return found


def _values_and_names(volume: Volume, path: Path) -> tuple[list[tuple[int, str]], bool]:
    """The values in a label map, 0 first, with the name of each if it has one, and whether the file names any."""
    if volume.segments:
        return [(0, ""), *((each.value, each.name) for each in present_segments(volume, path))], True
    return [(value, "") for value in distinct_values(as_integers(volume.array, path)).tolist()], False


def _check_classes(values: list[int], sets: Mapping[tuple[int, ...], Path], *, repeated: bool) -> None:
    """Raise ValueError for values that are grays of a smoothed mask, numbers of single objects, or many.

    values: all, sorted. sets: those of each file but 0, where it has any, with the first file that holds just these.
    repeated: whether several files hold the same.
    """
    largest = max(sets, key=len, default=())
    richest = sets.get(largest)
    grays = [value for value in values if 0 < value < 255]
    uneven = len(values) > _MAX_FOUND or len(set(np.diff(values).tolist())) > 2
    if values[:1] == [0] and values[-1] == 255 and len(grays) >= _GRAYS and uneven:
        raise ValueError(
            f"{richest}: holds gray values between 0 and 255, as masks have that were smoothed or scaled: "
            f"{first_few(grays, 8)}; store 0 and 255 alone (in Python 255 * (mask > 127)), or, if they are classes, "
            "declare them in a labels.json."
        )
    numbered = [each for each in sets if each[0] > 0 and len(each) >= _DENSE * each[-1]]
    most, fewest = max(numbered, key=len, default=()), min(numbered, key=len, default=())
    whole = all(len(each) == each[-1] for each in numbered)
    spread = whole and len(most) - len(fewest) >= _SPREAD
    differ = spread or 2 * len(fewest) <= len(most) or len({each[-1] for each in numbered}) >= _COUNTS
    counted = len(numbered) == len(sets) and len(most) > _MOST_NUMBERED and differ
    apart = len(set(chain.from_iterable(sets))) == sum(map(len, sets)) > _MOST_NUMBERED
    apart = apart and not repeated and len(sets) > 1 and min(map(len, sets)) > 1
    if counted or apart or len(values) > _MAX_FOUND:
        raise ValueError(
            f"{richest}: holds {len(largest)} values ({first_few(largest, 8)}), and the files {len(values)} in all, "
            "which look like numbers of single objects (instances) or lossy compression, not classes; store masks of 0 "
            "and 1 (in Python label > 0), or, if they are classes, declare them in a labels.json."
        )


def name_values(found: Mapping[int, Found], where: str, ignore: int | None = None) -> dict[int, str]:
    """`find_labels` of what `find_values` finds. Raises ValueError where nothing or a negative value is left."""
    classes = sorted(found.keys() - {0, ignore})
    if not classes:
        raise ValueError(
            f"{where}: no label file holds anything but 0{f' and data.ignore={ignore}' if ignore in found else ''}; "
            "check that labels and images are not mixed up."
        )
    lowest = classes[0]
    if lowest < 0:
        raise ValueError(f"{found[lowest].path}: holds the negative label value {lowest}; number the classes from 0.")
    return {0: "background", **{value: found[value].name or f"class_{index}" for index, value in enumerate(classes, 1)}}


def as_integers(array: np.ndarray, path: Path) -> np.ndarray:
    """A label array of any shape as integers, itself if it has them. Raises ValueError for other values."""
    if array.dtype.kind in "iu":
        return array
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if low >= -(2.0**31) and high < 2.0**31:  # false for NaN, which min() passes on
        integers = array.astype(np.int32)
        if np.array_equal(integers, array):
            return integers
    odd = array[~(np.isfinite(array) & (array == np.round(array)))].ravel() if low == low else array[np.isnan(array)]
    shown = first_few(np.unique(odd), 8) if odd.size else f"{low:g} to {high:g}"
    scaling = read_scaling(path) if is_nifti(path) and path.is_file() else (1.0, 0.0)
    scaled = f", as its header scales by scl_slope = {scaling[0]!r} and scl_inter = {scaling[1]!r}"
    raise ValueError(
        f"{path}: label values must be integers, but it holds {shown}{scaled if scaling != (1.0, 0.0) else ''}; "
        "store the label map as integers (resample labels with nearest neighbour, and check it is not the image)."
    )


def distinct_values(integers: np.ndarray) -> np.ndarray:
    """(n,) sorted distinct values of an integer array of any shape."""
    if not integers.size:
        return np.zeros(0, np.int64)
    low, high = int(integers.min()), int(integers.max())
    if high - low >= _MAX_TABLE:
        return np.unique(integers)
    present = np.zeros(high - low + 1, bool)
    present[integers if low == 0 else integers.astype(np.int64) - low] = True
    return np.flatnonzero(present) + low


def to_class_index(array: np.ndarray, labels: dict[int, str], path: Path, ignore: int | None = None) -> np.ndarray:
    """Map label values to their position in the sorted values of `labels`, as C-contiguous uint8 of the same shape.

    The value `ignore`, which is no class, becomes IGNORED. Raises ValueError, naming `path`, for values that are no
    integers or not declared.
    """
    assert len(labels) <= MAX_CLASSES
    integers = as_integers(array, path)
    if ignore is not None:
        ignored = integers == ignore
        index = to_class_index(np.where(ignored, 0, integers), labels, path)
        index[ignored] = IGNORED
        return index
    values = np.array(sorted(labels), np.int64)
    low, high = (int(integers.min()), int(integers.max())) if integers.size else (0, 0)
    if low >= values[0] and high <= values[-1]:
        if values[-1] == len(values) - 1:
            return np.ascontiguousarray(integers, np.uint8)
        if values[-1] < _MAX_TABLE:
            table = np.full(values[-1] + 1, _UNDECLARED, np.uint8)
            table[values] = np.arange(len(values))
            index = table[integers]
        else:
            place = np.searchsorted(values, integers)
            index = np.where(values[place] == integers, place, _UNDECLARED).astype(np.uint8)
        if index.max(initial=0) != _UNDECLARED:
            return index
    unknown = np.setdiff1d(distinct_values(integers), values)
    raise ValueError(
        f"{path}: holds label values that are not declared: {first_few(unknown, 8)}; declared are "
        f"{first_few(values, 8)}. Name the classes with their values (data.classes={{cell: 255}}, a labels.json, or "
        "the labels of the source), or correct the label map; data.ignore=VALUE leaves one out that marks voxels that "
        "are not annotated."
    )
