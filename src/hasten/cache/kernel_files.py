"""Compiled kernels on the disk: those of an image or of an earlier process are opened, new ones go into the cache."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)


def kernel_path(name: str, folder: Path) -> Path:
    """The file of a kernel: where it was built before, else where it is to be built, in a folder that exists.

    $HASTEN_KERNELS, a folder that came with an image, is read and never written; then comes `folder`, the cache's.
    Raises OSError where neither `folder` nor a temporary folder can be written to.
    """
    of_image = os.environ.get("HASTEN_KERNELS")
    for place in (*([Path(of_image)] if of_image else []), folder):
        if (place / name).exists():
            return place / name
    return _writable(folder) / name


@cache
def _writable(folder: Path) -> Path:
    """`folder`, made if need be; a temporary one of this process alone, after a warning, where it can't be written."""
    try:
        require_writable(folder)
    except OSError as error:
        own = tempfile.mkdtemp(prefix="hasten-kernels-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        log.warning(
            "%s: can't be written to (%s), so this process compiles kernels for itself alone; set HASTEN_CACHE to a "
            "folder that can be, or compile them beforehand (`hasten warm`)",
            folder,
            error.strerror,
        )
        return Path(own)
    return folder


def require_writable(folder: Path) -> None:
    """Make the folder if need be. Raises OSError if nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    # A real write: permission bits say nothing about read-only mounts or a superuser.
    with tempfile.TemporaryFile(dir=folder):
        pass
