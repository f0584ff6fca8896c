"""Checks of the folder that a study, or a data set, is written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def empty_folder(out: Path, option: str = "--out") -> Path:
    """Return `out` if it is missing or empty. Raises ValueError for a file, or a folder that isn't empty."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{option} {out}: is a file; choose another {option}")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{option} {out}: is not empty; choose another {option}")
    return out


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Create the folder `out` for the block to write into. Raises ValueError if it can't be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror or error}); name another folder") from None
