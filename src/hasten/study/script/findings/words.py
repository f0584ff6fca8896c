"""Places as findings show them."""

from __future__ import annotations

from pathlib import Path


def place(site: str) -> str:
    """A probe's `/path/train.py:31` as seen from the working folder, where it lies below that."""
    path, colon, line = site.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return site
