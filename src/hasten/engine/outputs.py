"""The output files of a prediction, checked before anything is computed."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.cases.types import Case


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
    files: Sequence[Sequence[Path]], cases: Sequence[Case], *, overwrite: bool, since: float | None = None
) -> list[bool]:
    """Which cases are to be written. Raises ValueError where one can't be, or would replace something.

    files: those of each case, its label map first. since: label maps that were written after this time, with all that
    belongs to them, are whole and stay. None keeps none.
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
    for of_case in files:
        existing = [each for each in of_case if each.exists()]
        if since is not None and len(existing) == len(of_case) and min(map(_written, existing)) >= since:
            to_write.append(False)
            continue
        if existing and not overwrite:
            older = (
                "was written before the settings in prediction.json, or not all that belongs to it is there"
                if since is not None
                else "exists"
            )
            raise ValueError(f"{existing[0]}: {older}; add --overwrite to replace it, or choose another --out")
        to_write.append(True)
    return to_write


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _number(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


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
