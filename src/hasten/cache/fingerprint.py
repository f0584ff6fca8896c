"""The fingerprint of a data set, kept so that a second look at the same files reads none of them."""

from __future__ import annotations

import logging

from hasten.cache.checked import DamagedEntry, read_checked, write_checked
from hasten.cache.key import cache_dir, entry_name, fingerprint_key
from hasten.cache.publish import sweep
from hasten.cases.types import CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig
from hasten.prepare.fingerprint import fingerprint_from_dict, fingerprint_to_dict, take_fingerprint

log = logging.getLogger(__name__)


def get_fingerprint(case_set: CaseSet, cache: CacheConfig) -> Fingerprint:
    """The fingerprint of these cases: from the cache folder while no file has changed, else taken and kept there.

    A damaged file is taken again, and a cache folder that can't be written costs the next run the same time; both
    with a warning. Raises what taking it raises.
    """
    path = cache_dir(cache) / "fingerprint" / f"{entry_name(case_set.name, fingerprint_key(case_set))}.json"
    try:
        return fingerprint_from_dict(read_checked(path))
    except FileNotFoundError:
        pass
    except (DamagedEntry, OSError, KeyError, TypeError, ValueError, AttributeError) as damage:
        log.warning("%s: the kept fingerprint can't be used and is taken again: %s", path, damage)
    fingerprint = take_fingerprint(case_set)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        write_checked(path, fingerprint_to_dict(fingerprint))
    except OSError as error:
        log.warning(
            "%s: the fingerprint can't be kept (%s); set cache.dir to a folder that can be written", path, error
        )
    return fingerprint
