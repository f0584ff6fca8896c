"""Content-addressed names: an entry is found again only while data, parameters and code are what they were."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import hasten
from hasten.cases.entries import Listing
from hasten.cases.tiff import TIFF_ENDINGS, spacing_file
from hasten.cases.types import Case, CaseSet
from hasten.config.scalings import canonical
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.config.url import is_url, shown
from hasten.files import expanded, hash_file

FORMAT = 9
"""Raised when the layout of an entry, or what goes into a voxel or a fingerprint, changes: older ones are not found."""
_VERSION = [FORMAT, hasten.__version__]
_ACCOMPANIED = (".mhd", ".nhdr", *TIFF_ENDINGS)
"""Endings of files that `parts_of` may find others for."""


def cache_dir(config: CacheConfig) -> Path:
    """Folder of the persistent cache: `cache.dir`, else $HASTEN_CACHE, else hasten/ in $XDG_CACHE_HOME or ~/.cache.

    Raises ValueError for a URL, and where the last is meant and there is no home folder.
    """
    for name, folder in (("cache.dir", config.dir), ("$HASTEN_CACHE", os.environ.get("HASTEN_CACHE"))):
        if folder and is_url(folder):
            raise ValueError(f"{name}={shown(folder)}: the cache is mapped into memory; name a folder of this machine")
        if folder:
            return expanded(folder)
    try:
        return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "hasten"
    except ValueError as error:
        raise ValueError(
            "no folder for the cache: this user has no home folder; set $HASTEN_CACHE (or cache.dir) to one that can "
            "be written to"
        ) from error


class Files(NamedTuple):
    """What the files of some cases were when they were looked at."""

    cases: tuple[Case, ...]
    identities: tuple[str, ...]
    """A digest of each case's id and files, 16 hexadecimal digits."""

    @property
    def identity(self) -> str:
        """Digest of all in their order."""
        return hashlib.sha256("".join(self.identities).encode()).hexdigest()[:16]


def files_of(cases: tuple[Case, ...], config: CacheConfig, known: Files | None = None) -> Files:
    """Identities of these cases' files: `known` if it is for exactly these cases, otherwise taken from the file system.

    Paths, sizes and modification times count, with `cache.hash_content` the files' bytes too. No file is opened
    otherwise. Raises ValueError for a missing file.
    """
    if known is not None and known.cases == cases:
        return known
    identities = []
    folders: dict[str, str] = {}
    for case in cases:
        row: list[object] = [case.id, len(case.image)]
        for file in (*case.image, *([case.label] if case.label else [])):
            try:
                row += _of_file(str(file), folders, config.hash_content) or [
                    each
                    for path in parts_of(file)
                    for each in _of_file(str(path), folders, config.hash_content, alone=True)
                ]
            except OSError as error:
                raise ValueError(
                    f"{error.filename}: can't be found ({error.strerror}); restore it, or remove case {case.id} from "
                    "the list"
                ) from error
        # Not as JSON, which takes several times as long for such short rows.
        identities.append(hashlib.sha256(repr(row).encode()).hexdigest()[:16])
    return Files(cases, tuple(identities))


def _of_file(path: str, folders: dict[str, str], content: bool, *, alone: bool = False) -> list[object]:
    """Real path, size and time of a file, and its SHA-256; [] for a folder, or a file that others may belong to.

    folders: the real paths of the folders that were met before. alone: no other files belong to it. Raises OSError.
    """
    # Not by pathlib, which takes twenty times as long: this runs for every file of a set at every start.
    status = os.lstat(path)
    folder, _, name = path.rpartition(os.sep)
    if not alone and (stat.S_ISDIR(status.st_mode) or name.lower().endswith(_ACCOMPANIED)):
        return []
    if stat.S_ISLNK(status.st_mode):
        real, status = os.path.realpath(path), os.stat(path)  # noqa: PTH116
        if not alone and stat.S_ISDIR(status.st_mode):
            return []
    else:
        if folder not in folders:
            folders[folder] = os.path.realpath(path.removesuffix(name) or ".")
        real = f"{folders[folder]}{os.sep}{name}"
    return [real, status.st_size, status.st_mtime_ns, *([hash_file(Path(path))] if content else [])]


def parts_of(path: Path) -> list[Path]:
    """The file and what is read with it: a TIFF's spacing, slices of a series."""
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.is_file())
    if path.suffix.lower() in (".mhd", ".nhdr"):
        beside = path.parent.glob(f"{path.stem}.*")
        return [path, *sorted(each for each in beside if "raw" in "".join(each.suffixes).lower())]
    second = spacing_file(path)
    return [path, second] if second is not None and second.exists() else [path]


def digest(content: object) -> str:
    """16 hexadecimal digits of SHA-256 over the JSON form of `content`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_key(case_set: CaseSet, prepare: PrepareConfig, max_points: int) -> str:
    """Key of all that decides how a case is prepared, besides its files.

    The number of threads changes no voxel and is left out.
    """
    prepare = canonical(prepare)
    parameters = {name: value for name, value in dataclasses.asdict(prepare).items() if name != "num_threads"}
    for name in ("spacing", "window"):
        if parameters[name] is not None:
            parameters[name] = _floats(parameters[name])
    shared = [sorted(case_set.labels.items()), list(case_set.channels), *_ignored(case_set)]
    return digest([_VERSION, "arena", parameters, max_points, shared])


def _ignored(described: CaseSet | Listing) -> list[int]:
    """The value to ignore, if any: keys without one are as they always were."""
    return [] if described.ignore is None else [described.ignore]


def _floats(values: Any) -> list[Any]:
    """Numbers, also in pairs, as float: 1 and 1.0 prepare alike."""
    return [_floats(each) if isinstance(each, tuple) else None if each is None else float(each) for each in values]


def fingerprint_key(listing: Listing, files: str) -> str:
    """Key of the fingerprint of what a source lists and declares. files: `Files.identity` of its cases."""
    labels = None if listing.labels is None else sorted(listing.labels.items())
    declared = [listing.name, listing.modality, listing.channels, labels, files, *_ignored(listing)]
    return digest([_VERSION, "fingerprint", *declared])


def entry_name(name: str, key: str) -> str:
    """Name of an entry: the data set's, as far as file names allow, for people; the key for finding it."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in name)
    return f"{safe[:40]}-{key}"
