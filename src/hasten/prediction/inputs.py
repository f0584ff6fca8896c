"""The cases in the inputs of a prediction, from file names and headers; no voxel is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hasten.cases.dicom import is_series
from hasten.cases.formats import is_picture, named_files, read_file_header, stem
from hasten.cases.read import misplaced_files
from hasten.cases.types import Case, is_flat
from hasten.config.patterns import first_few, listing

log = logging.getLogger(__name__)

_CHANNEL = re.compile(r"(.+)_\d{4}")


class _File(NamedTuple):
    path: Path
    shape: tuple[int, int, int]
    num_channels: int


def find_cases(inputs: Sequence[Path], channels: Sequence[str], spatial_dims: int) -> list[Case]:
    """The cases of image files, and of the image files in folders, in the order given and by name within a folder.

    Where the network takes several channels, files `NAME_0000`, `NAME_0001`, ... are the channels of the case NAME; a
    file that holds all the channels is a case by itself. Where every file of a folder, or every file that is named by
    itself, ends in `_0000`, that is taken off: so nnU-Net names cases of one channel. Raises one ValueError that lists
    every input whose header cannot be read, whose channels are not numbered from 0, or that has another number of
    channels or dimensions than the network was trained on.
    """
    files: list[_File] = []
    unreadable: list[str] = []
    named = {path: _listed(path) for path in inputs}
    names = _names([path for path, listed in named.items() if listed == [path]])
    for path, listed in named.items():
        names.update(_names(listed) if listed != [path] else {})
        for file in listed:
            try:
                files.append(_File(file, *read_file_header(file)[:2]))
            except ValueError as error:
                unreadable.append(str(error))
    groups: dict[tuple[Path, str], list[_File]] = {}
    for image in {image.path: image for image in files}.values():
        groups.setdefault(_case_of(image, len(channels), names), []).append(image)
    unfit = [_mismatch(name, group, channels, spatial_dims) for (_, name), group in groups.items()]
    problems = [unreadable, [problem for problem in unfit if problem]]
    count = sum(map(len, problems))
    if count:
        raise ValueError(listing(problems, f"{count} inputs can't be predicted, so nothing was written"))
    cases = [Case(id=name, image=_paths(group)) for (_, name), group in groups.items()]
    told: dict[Path, float] = {}
    for case in cases:
        if len(case.image) > 1:
            told |= misplaced_files(case, read_file_header(case.image[0]))
    if told:
        log.warning(
            "the corners of %d files lie beside those of the first image of their case, by up to %.2g voxels: %s",
            len(told),
            max(told.values()),
            first_few(told),
        )
    return cases


def _paths(group: Sequence[_File]) -> tuple[Path, ...]:
    return tuple(sorted(image.path for image in group))


def _listed(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder; name an image, or a folder of images")
    files = [file for _, file in named_files(path)] if path.is_dir() and not is_series(path) else [path]
    if not files:
        raise ValueError(f"{path}: holds no image files; name an image, or a folder of images")
    return files


def _names(files: list[Path]) -> dict[Path, str]:
    """Shorter names where each file is a case of nnU-Net's, with its only channel."""
    if not all(stem(file).endswith("_0000") and len(stem(file)) > 5 for file in files):
        return {}
    return {file: stem(file)[:-5] for file in files}


def _case_of(file: _File, num_channels: int, names: dict[Path, str]) -> tuple[Path, str]:
    """The key of a case, and its name: files that hold one channel of several share both."""
    name = names.get(file.path, stem(file.path))
    part = _CHANNEL.fullmatch(name)
    return (file.path.parent, part[1]) if part and file.num_channels < num_channels else (file.path, name)


def _mismatch(name: str, group: list[_File], channels: Sequence[str], spatial_dims: int) -> str | None:
    """Why a case can't go through the network; None if it can."""
    first, count = group[0], sum(file.num_channels for file in group)
    if count != len(channels):
        several = f" and {len(group) - 1} more of case {name}" if len(group) > 1 else ""
        hint = f"; its files must end in _0000 to _{len(channels) - 1:04d}" if len(channels) > 1 else ""
        return (
            f"{first.path}{several}: {count} channel{'' if count == 1 else 's'}, but the network was trained on "
            f"{len(channels)} ({', '.join(channels)}); give every case those channels{hint}"
        )
    numbers = sorted(stem(file.path)[-4:] for file in group)
    wanted = [f"{number:04d}" for number in range(len(group))]
    if len(group) > 1 and numbers != wanted:
        return (
            f"{first.path}: the files of case {name} end in {', '.join(numbers)}, but channels are counted from 0 "
            f"({', '.join(wanted)}); rename them in the order {', '.join(channels)}"
        )
    flat = is_flat(first.shape)
    # A volume of one slice (D) may go through a 3-D network; a picture lies nowhere in space.
    deep = not is_picture(first.path) and (not flat or first.shape[0] == 1)
    if not (flat if spatial_dims == 2 else deep):
        kind = "2-D picture" if flat else "3-D image"
        return (
            f"{first.path}: a {kind} of shape {first.shape} (D, H, W), but the network was trained on "
            f"{spatial_dims}-D images; leave it out"
        )
    return None
