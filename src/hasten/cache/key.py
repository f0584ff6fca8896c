"""Content-addressed names: an entry is found again only while data, parameters and code are what they were."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import hasten
from hasten.cases.tiff import spacing_file
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.config.url import is_url, shown

FORMAT = 4
"""Raised when the layout of an entry, or what goes into a voxel or a fingerprint, changes: older ones are not found."""
_VERSION = [FORMAT, hasten.__version__]
_PAIRED = {".img": ".hdr", ".hdr": ".img", ".img.gz": ".hdr.gz", ".hdr.gz": ".img.gz"}


def cache_dir(config: CacheConfig) -> Path:
    """Folder of the persistent cache: `cache.dir`, else $HASTEN_CACHE, else hasten/ in $XDG_CACHE_HOME or ~/.cache.

    Raises ValueError for a URL.
    """
    for name, folder in (("cache.dir", config.dir), ("$HASTEN_CACHE", os.environ.get("HASTEN_CACHE"))):
        if folder and is_url(folder):
            raise ValueError(f"{name}={shown(folder)}: the cache is mapped into memory; name a folder of this machine")
        if folder:
            return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hasten"


def files_identity(cases: tuple[Case, ...], *, content: bool = False) -> list[list[object]]:
    """Id, paths, sizes and modification times of every case, and the SHA-256 of the files' bytes on request.

    Raises ValueError for a file that is not there.
    """
    rows: list[list[object]] = []
    for case in cases:
        row: list[object] = [case.id, len(case.image)]
        for named in (*case.image, *([case.label] if case.label else [])):
            for path in _parts(named):
                try:
                    status = path.stat()
                except OSError as error:
                    raise ValueError(
                        f"{path}: can't be found ({error.strerror}); restore it, or remove case {case.id} from the list"
                    ) from error
                row += [str(path.resolve()), status.st_size, status.st_mtime_ns, *([sha256(path)] if content else [])]
        rows.append(row)
    return rows


def _parts(path: Path) -> list[Path]:
    """The file and what is read with it: the other half of a .hdr/.img pair, which is named by one of its two files,
    a TIFF's spacing, every slice of a series."""
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.is_file())
    if path.suffix.lower() in (".mhd", ".nhdr"):
        beside = path.parent.glob(f"{path.stem}.*")
        return [path, *sorted(each for each in beside if "raw" in "".join(each.suffixes).lower())]
    spacing = spacing_file(path)
    if spacing is not None:
        return [path, spacing]
    for known, other in _PAIRED.items():
        if path.name.endswith(known):
            half = path.with_name(path.name.removesuffix(known) + other)
            return [path, half] if half.exists() else [path]
    return [path]


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(content: object) -> str:
    """16 hexadecimal digits of SHA-256 over the JSON form of `content`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def arena_key(case_set: CaseSet, prepare: PrepareConfig, max_points: int, *, hash_content: bool = False) -> str:
    """Key of the arena of these cases prepared so. The number of threads changes no voxel and is left out."""
    parameters = {name: value for name, value in dataclasses.asdict(prepare).items() if name != "num_threads"}
    for name in ("spacing", "window"):
        if parameters[name] is not None:
            parameters[name] = [float(value) for value in parameters[name]]  # 1 and 1.0 prepare alike
    files = files_identity(case_set.cases, content=hash_content)
    return digest([_VERSION, "arena", parameters, max_points, _shared(case_set), files])


def fingerprint_key(case_set: CaseSet) -> str:
    """Key of the fingerprint of these cases."""
    own = [case_set.name, case_set.modality, case_set.spatial_dims]
    return digest([_VERSION, "fingerprint", own, _shared(case_set), files_identity(case_set.cases)])


def entry_name(name: str, key: str) -> str:
    """Name of an entry: the data set's, as far as file names allow, for people; the key for finding it."""
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in name)
    return f"{safe[:40]}-{key}"


def _shared(case_set: CaseSet) -> list[object]:
    return [sorted(case_set.labels.items()), list(case_set.channels)]
