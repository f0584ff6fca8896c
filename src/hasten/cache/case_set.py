"""The cases that a configuration names."""

from __future__ import annotations

from hasten.cache.fingerprint import CachedSource, find_cached_source, get_case_set
from hasten.cache.key import cache_dir
from hasten.cases.regions import with_regions
from hasten.cases.sources import find_listing, with_classes, with_ignore
from hasten.cases.split import split_cases
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import RunConfig


def read_case_set(config: RunConfig) -> CaseSet:
    """The cases that a configuration names. Raises ValueError for anything wrong with the source."""
    return _cached_case_set(config)[1]


def read_cases(config: RunConfig) -> tuple[CaseSet, tuple[Case, ...], tuple[Case, ...]]:
    """The cases that a configuration names, those that are trained on, and those that are validated on.

    Raises ValueError for anything wrong with the source or the split.
    """
    case_set = read_case_set(config)
    return case_set, *split_cases(case_set, config.data.split)


def _cached_case_set(config: RunConfig) -> tuple[CachedSource, CaseSet]:
    remote_dir = cache_dir(config.cache) / "remote"
    declared = with_classes(find_listing(config.data.source, remote_dir=remote_dir), config.data.classes)
    listing = with_ignore(declared, config.data.ignore)
    cached = find_cached_source(listing, config.cache)
    return cached, with_regions(get_case_set(listing, config.data.spatial_dims, cached), config.data)
