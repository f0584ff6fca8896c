"""Where a study may be written."""

from __future__ import annotations

from pathlib import Path


def empty_folder(out: Path) -> Path:
    """`out`, if a study can be written there. Raises ValueError for a file, or a folder with anything in it."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; choose another --out")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"--out {out}: is not empty; choose another --out")
    return out
