"""Atomic file writes, paths and lines of text that several layers share."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from hasten.system import ignores_case, replace_file


@contextmanager
def replacing(path: Path, temporary: Path | None = None, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """An open `temporary` to fill: it becomes `path`, or is removed where the block fails.

    temporary: None is a hidden name beside `path` that no other process takes.
    durable: wait until its content is on the disk. An OSError names `path`.
    """
    temporary = temporary or path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with naming(path), temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        replace_file(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the file system that names no file, as of a full disk, names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def make_writable(folder: Path) -> None:
    """Make a folder if need be. Raises OSError where nothing can be written in it."""
    folder.mkdir(parents=True, exist_ok=True)
    # A real write: permission bits say nothing about read-only mounts, full disks or a superuser.
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"\0")


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of files together, those in a folder included; what is missing counts as empty."""
    files = (each for path in paths for each in (path.iterdir() if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file())


def same_files(paths: Sequence[Path]) -> list[Path]:
    """Some of the paths that are one file, also of a file system that takes A for a; [] where all differ."""
    lower = {str(path).lower() for path in paths}
    fold = str.lower if len(lower) < len(paths) and ignores_case(existing(paths[0].parent)) else str
    by_name: dict[str, list[Path]] = {}
    for path in paths:
        by_name.setdefault(fold(str(path)), []).append(path)
    return next((each for each in by_name.values() if len(each) > 1), [])


def expanded(path: str | Path) -> Path:
    """`path` with ~ or ~NAME as that user's home folder. Raises ValueError for a user who has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        name = Path(path).parts[0]
        whose = "this user" if name == "~" else f"a user {name[1:]}"
        raise ValueError(f"{path}: {whose} has no home folder here; write the whole path") from error


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())


def printable(text: str) -> str:
    """`text` with every character that steers a terminal or turns the reading direction written as JSON does.

    Line breaks, tabs and no-break spaces stay. File names may hold anything.
    """
    return "".join(each if each.isprintable() or each in "\n\t\xa0" else json.dumps(each)[1:-1] for each in text)


def last_line(error: BaseException) -> str:
    """The last line of an error's text, which of a compiler's is the message; the name of its class if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def first_line(text: object) -> str:
    """The first line of a text, or of an error's; the name of its class where that is empty."""
    return next(iter(str(text).strip().splitlines()), type(text).__name__)
