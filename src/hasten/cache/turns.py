"""A lock per cache entry: one process builds it, the others wait, and a later one resumes a killed build."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hasten.cache.publish import become, published, sweep
from hasten.files import same_file

log = logging.getLogger(__name__)


@contextmanager
def building(folder: Path, is_complete: Callable[[], bool]) -> Iterator[Path | None]:
    """The folder to fill, which becomes `folder` if the block succeeds; None if another process built the entry.

    Waits while another process builds. What a killed or interrupted process wrote is still in the folder; what an
    error left is removed. `is_complete` returns whether the entry exists.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    partial = partial_of(folder)
    try:
        handle = _lock(partial, is_complete)
    except OSError as error:
        # A file system without locks: every process builds by itself, and the first to publish wins.
        log.warning("%s: can't be locked (%s); several processes may prepare the same cases", folder.parent, error)
        with published(folder) as temporary:
            yield temporary
        return
    if handle is None:
        yield None
        return
    try:
        yield partial
        become(partial, folder)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def partial_of(folder: Path) -> Path:
    """Where an entry lies while it is built."""
    return folder.with_name(f".{folder.name}.partial")


def _lock(partial: Path, is_complete: Callable[[], bool]) -> int | None:
    """An open handle that holds the lock on the folder, or None once the entry exists. Raises OSError."""
    logged = False
    while not is_complete():
        partial.mkdir(exist_ok=True)
        try:
            handle = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not logged:
                    log.info("%s: another process prepares these cases; waiting for it", partial)
                logged = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The previous owner of the lock may have published or removed that folder; the path may be another one.
            if same_file(handle, partial):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    return None
