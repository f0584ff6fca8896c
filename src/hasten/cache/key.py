"""Content-addressed names: an entry is found again only while data, parameters and code are what they were."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig

FORMAT = 1
"""Raised whenever the layout of an entry, or what preparing does to a voxel, changes: older entries are then not found."""


def cache_dir(config: CacheConfig) -> Path:
    """Folder of the persistent cache: `cache.dir`, else $HASTEN_CACHE, else $XDG_CACHE_HOME/hasten, else ~/.cache/hasten."""
    if config.dir:
        return Path(config.dir).expanduser()
    if os.environ.get("HASTEN_CACHE"):
        return Path(os.environ["HASTEN_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hasten"


def files_identity(cases: tuple[Case, ...]) -> list[list[object]]:
    """Id, paths, sizes and modification times of every case."""
    rows: list[list[object]] = []
    for case in cases:
        row: list[object] = [case.id]
        for path in (*case.image, *([case.label] if case.label else [])):
            status = path.stat()
            row += [str(path.resolve()), status.st_size, status.st_mtime_ns]
        rows.append(row)
    return rows


def digest(content: object) -> str:
    """16 hexadecimal digits of SHA-256 over the JSON form of `content`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def arena_key(case_set: CaseSet, prepare: PrepareConfig, max_points: int) -> str:
    """Key of the arena of these cases prepared so."""
    parameters = {name: value for name, value in dataclasses.asdict(prepare).items() if name != "num_threads"}
    labels = sorted(case_set.labels.items())
    return digest([FORMAT, parameters, max_points, labels, files_identity(case_set.cases)])


def fingerprint_key(case_set: CaseSet) -> str:
    """Key of the fingerprint of these cases."""
    return digest(
        [FORMAT, "fingerprint", sorted(case_set.labels.items()), case_set.modality, files_identity(case_set.cases)]
    )
