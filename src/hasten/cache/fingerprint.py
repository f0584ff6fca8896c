"""The cases of a source and their fingerprint, cached so that a second run on the same files opens none of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from hasten.cache.key import Files, cache_dir, entry_name, files_of, fingerprint_key
from hasten.cache.publish import DamagedEntry, read_checked, sweep, write_checked
from hasten.cases.entries import Listing, pause_garbage_collection
from hasten.cases.regions import with_regions
from hasten.cases.sources import as_case_set, find_listing, look_into, with_classes, with_ignore
from hasten.cases.split import split_cases
from hasten.cases.types import Case, CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig, RunConfig
from hasten.prepare.fingerprint import fingerprint_from_dict, fingerprint_to_dict, take_fingerprint

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedSource:
    """What the cache folder has of a source while none of its files has changed."""

    path: Path
    fingerprint: Fingerprint | None
    files: Files


@pause_garbage_collection()
def find_cached_source(listing: Listing, cache: CacheConfig) -> CachedSource:
    """Look for the fingerprint of these files. A damaged one counts as none, with a warning.

    Raises ValueError for a missing file.
    """
    files = files_of(listing.cases, cache)
    key = fingerprint_key(listing, files.identity)
    path = cache_dir(cache) / "fingerprint" / f"{entry_name(listing.name, key)}.json"
    try:
        return CachedSource(path=path, fingerprint=fingerprint_from_dict(read_checked(path)), files=files)
    except FileNotFoundError:
        pass
    except (DamagedEntry, OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as damage:
        log.warning("%s: the cached fingerprint can't be used and is computed again: %s", path, damage)
    return CachedSource(path=path, fingerprint=None, files=files)


def get_case_set(listing: Listing, spatial_dims: int | None, cached: CachedSource) -> CaseSet:
    """The cached result of `look_into`; opens files only where the fingerprint lacks it."""
    stored = cached.fingerprint
    if stored is None or spatial_dims not in (None, stored.spatial_dims):
        return look_into(listing, spatial_dims)
    return as_case_set(listing, labels=stored.labels, channels=stored.channels, spatial_dims=stored.spatial_dims)


def get_fingerprint(case_set: CaseSet, cached: CachedSource) -> Fingerprint:
    """The cached fingerprint of the cases from `get_case_set`; computed and cached if there is none.

    A cache folder that can't be written costs the next run the same time, with a warning. Raises what taking it raises.
    """
    if cached.fingerprint is not None:
        return cached.fingerprint
    fingerprint = take_fingerprint(case_set)
    try:
        cached.path.parent.mkdir(parents=True, exist_ok=True)
        sweep(cached.path.parent)
        write_checked(cached.path, fingerprint_to_dict(fingerprint))
    except OSError as error:
        log.warning("%s: the fingerprint can't be cached (%s); set cache.dir to a writable folder", cached.path, error)
    return fingerprint


def read_case_set(config: RunConfig) -> CaseSet:
    """The cases that a configuration names. Raises ValueError for anything wrong with the source."""
    return cached_case_set(config)[1]


def read_cases(config: RunConfig) -> tuple[CaseSet, tuple[Case, ...], tuple[Case, ...]]:
    """The cases that a configuration names, those that are trained on, and those that are validated on.

    Raises ValueError for anything wrong with the source or the split.
    """
    case_set = read_case_set(config)
    return case_set, *split_cases(case_set, config.data.split)


def cached_case_set(config: RunConfig) -> tuple[CachedSource, CaseSet]:
    remote_dir = cache_dir(config.cache) / "remote"
    declared = with_classes(find_listing(config.data.source, remote_dir=remote_dir), config.data.classes)
    listing = with_ignore(declared, config.data.ignore)
    cached = find_cached_source(listing, config.cache)
    return cached, with_regions(get_case_set(listing, config.data.spatial_dims, cached), config.data)
