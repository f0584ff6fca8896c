"""The output files of a prediction: checked before anything is computed, and how all but the label maps are written.

prediction.json holds the settings behind the label maps of a folder, by which a later prediction can resume.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import prod
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from hasten.cases.types import Case
from hasten.config.resume_rules import text_of
from hasten.files import hash_file, replacing, size_of, sync_folder
from hasten.prediction.ensemble import Member
from hasten.prediction.postprocess import Cleanings

PREDICTION_JSON = "prediction.json"
_OF_THE_MACHINE = ("batch_size", "sums_on_host")
"""Settings of `infer` that do not affect the label maps."""
_SLAB = 1 << 24
"""Bytes of probabilities that are compressed at once."""


def region_folders(content: dict[str, Any], out: Path, *, where: str) -> list[Path]:
    """One in `out` for the masks of each region. Raises ValueError without regions, or where two share a folder."""
    names = list(content.get("regions", {}))
    if not names:
        raise ValueError(f"{where}: was trained without regions, so its label maps say all; leave out --regions")
    folders = [out / re.sub(r"[^\w +-]", "_", name).strip() for name in names]
    # Some file systems take A for a.
    lower = [str(folder).lower() for folder in folders]
    twice = [name for name, folder in zip(names, lower, strict=True) if lower.count(folder) > 1]
    if twice:
        raise ValueError(f"{where}: regions {' and '.join(twice)} would be written to one folder; leave out --regions")
    return folders


def label_targets(
    files: Sequence[Sequence[Path]], cases: Sequence[Case], *, overwrite: bool, since: float | None = None,
    sizes: Mapping[str, int] | None = None,
) -> list[bool]:  # fmt: skip
    """Whether each case is to be written. Raises ValueError where one can't be, or would replace something.

    files: those of each case, its label map first. since: label maps that were written after this time, with all that
    belongs to them and from these images, are whole and stay. None keeps none. sizes: name of a label map to the bytes
    of the image that it was predicted from.
    """
    times = Counter(target for of_case in files for target in of_case)
    twice = next((target for target, count in times.items() if count > 1), None)
    if twice is not None:
        same = [str(case.image[0]) for case, of_case in zip(cases, files, strict=True) if twice in of_case]
        raise ValueError(f"{twice}: {' and '.join(same)} would both be written there; give each its own --out")
    # By file number, which also knows links and file systems that take A for a.
    inputs = {_number(image) for case in cases for image in case.image}
    for target in times:
        if target.exists() and _number(target) in inputs:
            raise ValueError(f"{target}: is an input; choose another --out")
    to_write = []
    for of_case, case in zip(files, cases, strict=True):
        existing = [each for each in of_case if each.exists()]
        problem = _why_not_kept(of_case, case, since, (sizes or {}).get(of_case[0].name))
        if problem and existing and not overwrite:
            raise ValueError(f"{existing[0]}: {problem}; add --overwrite to replace it, or choose another --out")
        to_write.append(bool(problem))
    return to_write


def _why_not_kept(of_case: Sequence[Path], case: Case, since: float | None, size: int | None) -> str:
    """Why the files of a case can't stay; "" if they can. size: bytes of the image that they were predicted from."""
    if since is None:
        return "exists"
    written = min((each.stat().st_mtime if each.exists() else -1.0) for each in of_case)
    if written < since:
        return f"was written before the settings in {PREDICTION_JSON}, or not all that belongs to it is there"
    image_time = max(path.stat().st_mtime for path in case.image)
    if written < image_time or size not in (None, size_of(case.image)):
        return f"was predicted from another image than {case.image[0]} is now"
    return ""


def _number(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """An OSError inside is a ValueError that names `target` and the remedy."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{target}: cannot be written ({error.strerror}); free some space or choose another --out"
        ) from None


def write_file(target: Path, data: bytes) -> None:
    """Write a file, whole or not at all, and the folders above it. Raises ValueError."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, target.with_name(f".{target.name}.{token_hex(4)}")) as file:
            file.write(data)
        sync_folder(target.parent)


def make_folder(out: Path) -> bool:
    """Make `out` ready for writing, and return whether it is new. Raises ValueError where that fails."""
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A real write: permission bits say nothing about read-only mounts or a superuser.
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    return is_new


def scratch(out: Path, shape: Sequence[int]) -> np.ndarray:
    """Float16 zeros (K, D, H, W) in a file in `out` that has no name and ends with the array.

    Raises ValueError where the disk has no room for it.
    """
    size = 2 * prod(shape)
    try:
        with tempfile.TemporaryFile(dir=out) as file:
            # Space that is reserved can't run out later, when a write through the mapping would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.float16, "r+", shape=tuple(shape))
    except OSError as error:
        raise ValueError(
            f"{out}: has no room for {size / 1e9:.2g} GB of probabilities ({error.strerror}); free some space, choose "
            "another --out or leave out --probabilities"
        ) from None


def write_probabilities(target: Path, array: np.ndarray, classes: Sequence[str]) -> None:
    """Write a compressed .npz with `probabilities` (K, D, H, W) and the names of its `classes` (K,); atomically.

    In memory is a slab of the array at a time. Raises OSError.
    """
    with (
        replacing(target, target.with_name(f".partial-{target.name}")) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        with archive.open("probabilities.npy", "w", force_zip64=True) as member:
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(member, header)
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, len(flat), _SLAB):
                member.write(np.ascontiguousarray(flat[start : start + _SLAB]).data)
        with archive.open("classes.npy", "w") as member:
            np.lib.format.write_array(member, np.array(classes), allow_pickle=False)


def deciding_settings(members: Sequence[Member], cleanings: Cleanings) -> dict[str, Any]:
    """The content of prediction.json: everything that the label maps of these networks depend on."""
    infer = members[0].content["config"]["infer"]
    return {
        "networks": {str(member.where): hash_file(member.where) for member in members},
        "infer": {name: value for name, value in infer.items() if name not in _OF_THE_MACHINE},
        "postprocessing": {str(value): asdict(cleaning) for value, cleaning in cleanings.items()},
    }


def written_since(out: Path, settings: dict[str, Any], *, overwrite: bool) -> float:
    """The time of `out`/prediction.json, after which label maps were written with these settings.

    Infinity without such a file. Where it holds other settings, infinity with `overwrite`, else a ValueError.
    """
    path = out / PREDICTION_JSON
    before = read_settings(path)
    differences = _differences(before, settings) if before is not None else []
    if before is None or (differences and overwrite):
        return float("inf")
    if differences:
        lines = "\n  ".join(differences)
        raise ValueError(
            f"{path}: the label maps beside it were predicted otherwise; predict as before, choose another --out, or "
            f"add --overwrite to replace them\n  {lines}"
        )
    return path.stat().st_mtime


def image_sizes(out: Path) -> dict[str, int]:
    """Name of each label map in `out` to the bytes of the image that it was predicted from, by prediction.json."""
    return (read_settings(out / PREDICTION_JSON) or {}).get("images", {})


def training_cases(out: Path) -> dict[str, list[str]]:
    """Label maps in `out` of cases that the networks were trained on, with the runs of these, by prediction.json."""
    return (read_settings(out / PREDICTION_JSON) or {}).get("training_cases", {})


def write_settings(
    out: Path, settings: dict[str, Any], sizes: Mapping[str, int], trained: Mapping[str, Sequence[str]]
) -> None:
    """Write `out`/prediction.json. One with the same settings keeps its time and what it says of other label maps.

    trained: as `training_cases` gives them. Raises ValueError.
    """
    path = out / PREDICTION_JSON
    before, time = read_settings(path), None
    content = {**settings, "images": dict(sizes), "training_cases": dict(trained)}
    if before is not None and not _differences(before, settings):
        time = path.stat().st_mtime_ns
        others = {name: runs for name, runs in before.get("training_cases", {}).items() if name not in sizes}
        images = {**before.get("images", {}), **sizes}
        content = {**before, "images": images, "training_cases": {**others, **trained}}
        if content == before:
            return
    write_file(path, f"{json.dumps(content, indent=2)}\n".encode())
    if time is not None:
        os.utime(path, ns=(time, time))


def read_settings(path: Path) -> dict[str, Any] | None:
    """None for a file that is missing, or that Hasten did not write."""
    try:
        content = json.loads(path.read_bytes())
        return content if {"networks", "infer", "postprocessing"} <= set(content) else None
    except (OSError, ValueError, TypeError):
        return None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    now = json.loads(json.dumps(now))  # tuples become lists
    differences = []
    one, two = before["networks"], now["networks"]
    if sorted(one.values()) != sorted(two.values()):
        changed = [where for where in two if where in one and one[where] != two[where]]
        other = f"{', '.join(two)} instead of {', '.join(one)}"
        differences.append(f"networks: {', '.join(changed)} changed since" if changed else f"networks: {other}")
    for section in ("infer", "postprocessing"):
        was, has = before[section], now[section]
        names = dict.fromkeys((*was, *has))
        differences += [
            f"{section}.{name}={text_of(has.get(name))} instead of {text_of(was.get(name))}"
            for name in names
            if was.get(name) != has.get(name)
        ]
    return differences
