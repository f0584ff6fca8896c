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
from hasten.cache.item_bytes import encode
from hasten.cache.mappings import Mappings, mapping_slots
from hasten.cache.model import Models
from hasten.cache.publish import as_value_error, sweep, temporary_for
from hasten.files import expanded, replacing

log = logging.getLogger(__name__)


class PersistentDataset(ChainDataset):
    """Items up to the first random transform are kept as files in `cache_dir`, created at first access.

    A file is found again while the item, the size and time of the files that it names, and the transforms with their
    parameters and versions are what they were; nothing stale is served. hash_content: identify files by the SHA-256 of
    their bytes instead of their time. Files are written whole or not at all, carry checksums, hold no pickle, and are
    mapped, so that all processes of a machine share one copy of them in memory and only what a transform changes is
    copied; a damaged one is replaced with a warning. Raises ValueError for an item that can't be stored without pickle,
    and where the disk is full.
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
        self.models = Models()
        self.mappings: dict[str, tuple[tuple[int, int, int], Mappings]] = {}
        self.slots = mapping_slots()
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
            if not status.st_size:
                raise DamagedEntry("is empty")
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            known_version, mappings = self.mappings.get(name, (None, None))
            if mappings is None or known_version != version:
                if mappings is not None:
                    mappings.close()
                mappings = Mappings(status.st_size, 0, self.slots)
                self.mappings[name] = (version, mappings)
            mapped = mappings.take(handle)
        finally:
            os.close(handle)
        return self.models.item(name, version, mapped)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mappings": {}, "slots": mapping_slots()}  # each process maps for itself
