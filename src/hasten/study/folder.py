"""Where a study, or a data set, may be written."""

from __future__ import annotations

from pathlib import Path


def empty_folder(out: Path, option: str = "--out") -> Path:
    """`out`, if it can be filled. Raises ValueError for a file, or a folder with anything in it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{option} {out}: is a file; choose another {option}")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{option} {out}: is not empty; choose another {option}")
    return out
