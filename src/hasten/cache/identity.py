"""What a cached item depends on, as a digest: the files it names, the transforms and their parameters, versions."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

import hasten
from hasten.cache.chain import SplitCompose
from hasten.cache.describe import Digester, is_library
from hasten.cache.key import digest
from hasten.files import hash_file


def chain_identity(chain: SplitCompose) -> str:
    """Digest of the deterministic transforms: classes, code, parameters, and the versions of what runs them.

    Raises ValueError for a transform with a list or dictionary that holds itself.
    """
    import monai

    versions = [hasten.__version__, monai.__version__, torch.__version__, np.__version__]
    digester = Digester()
    described = []
    for each in chain.fixed_transforms:
        try:
            described.append(digester.digest(each))
        except RecursionError:
            raise ValueError(
                f"{type(each).__name__}: a list, tuple or dictionary that it uses holds itself or is nested too deeply "
                "to tell by it what is kept; make it one that holds only other values"
            ) from None
    return digest([versions, described])


def item_identity(item: Any, *, content: bool = False) -> str:
    """Digest of a data set's row. Text and paths that name files count with size and modification time.

    content: with the SHA-256 of their bytes instead of the time, for file systems with unreliable times.
    """
    return digest(_row(item, content))


def _row(value: Any, content: bool) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _row(each, content) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_row(each, content) for each in value]
    if isinstance(value, str | PurePath):
        return _identifier(str(value), content)
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    kind = type(value)
    if is_library(kind.__module__):
        return Digester().digest(value)
    return [_class_identity(kind), Digester(kind).digest(value)]  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _class_identity(kind: type) -> str:
    """Digest of a class of the user's whose objects are in rows: once, as rows are looked at with every access."""
    return Digester().digest(kind)


def _identifier(text: str, content: bool) -> Any:
    """A text that may name a file or folder."""
    # Not by pathlib, which takes ten times as long: this runs at every access of an item.
    try:
        status = os.stat(text)  # noqa: PTH116
    except (OSError, ValueError):  # no file; or no name at all
        return text
    if not stat.S_ISDIR(status.st_mode):
        last = hash_file(Path(text)) if content else status.st_mtime_ns
        return ["file", os.path.abspath(text), status.st_size, last]  # noqa: PTH100
    files = sorted(str(each) for each in Path(text).rglob("*") if each.is_file())
    return ["folder", str(Path(text).absolute()), [_identifier(each, content) for each in files]]
