"""`PersistentDataset`: prepares the deterministic part of every item once and keeps it on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.cache.chain import Transform
from hasten.cache.checked import DamagedEntry
from hasten.cache.dataset import ChainDataset
from hasten.cache.identity import chain_identity, item_identity
from hasten.cache.item_bytes import decode, encode, read_record
from hasten.cache.publish import as_value_error, sweep, temporary_for
from hasten.files import expanded, replacing

log = logging.getLogger(__name__)


class PersistentDataset(ChainDataset):
    """Items up to the first random transform are kept as files in `cache_dir`, created at first access.

    A file is found again while the item, the size and time of the files that it names, and the transforms with their
    parameters and versions are what they were; nothing stale is served. hash_content: identify files by the SHA-256 of
    their bytes instead of their time. Files are written whole or not at all, carry checksums, and hold no pickle; large
    ones are mapped. A damaged one is replaced with a warning. Raises ValueError for an item that can't be stored
    without pickle, and where the disk is full.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Transform | Sequence[Transform] | None,
        cache_dir: str | Path,
        *,
        hash_content: bool = False,
    ) -> None:
        super().__init__(data, transform)
        self.cache_dir = expanded(cache_dir)
        self.hash_content = hash_content
        self.checked: dict[str, tuple[int, int, int]] = {}
        """The versions of files whose checksums were compared."""
        with as_value_error(self.cache_dir):
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            sweep(self.cache_dir)
        self.set_data(data)

    def set_data(self, data: Sequence[Any]) -> None:
        """Replace the data. Cached items of the previous data stay on the disk."""
        self.data, self.identity = data, chain_identity(self.chain)

    def prepared(self, index: int) -> Any:
        name = f"{self.identity}-{item_identity(self.data[index], content=self.hash_content)}"
        path = self.cache_dir / f"{name}.rec"
        try:
            return self._read(path, name)
        except FileNotFoundError:
            pass
        except DamagedEntry as damage:
            log.warning("%s: %s; the item is prepared again", path, damage)
        item = self.prepare(index)
        with as_value_error(self.cache_dir), replacing(path, temporary_for(path)) as file:
            file.writelines(encode(item))
        return item

    def _read(self, path: Path, name: str) -> Any:
        handle = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(handle)
            data = read_record(handle, status.st_size)
        finally:
            os.close(handle)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        item = decode(data, verify=self.checked.get(name) != version)
        self.checked[name] = version
        return item
