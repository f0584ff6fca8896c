"""`PersistentDataset` and `LMDBDataset`: the deterministic part of every item, prepared once and kept on disk."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from hasten.cache.chain import Transform
from hasten.cache.dataset import ChainDataset, check_hashes, check_monai, with_progress
from hasten.cache.identity import chain_identity, item_identity
from hasten.cache.item_bytes import decode, encode, read_record
from hasten.cache.publish import DamagedEntry, as_value_error, sweep, temporary_for
from hasten.files import expanded, replacing
from hasten.prepare.threads import on_threads

log = logging.getLogger(__name__)


_BATCH = 256
"""Items between two commits: what a killed filling loses at most."""
_FIRST_SIZE = 64 * 2**20
_KEYS = "keys cover the row, the files that it names and the transforms with their code"


class PersistentDataset(ChainDataset):
    """Items up to the first random transform are kept as files in `cache_dir`, created at first access.

    A file is found again while the item, the size and time of the files that it names, and the transforms with their
    parameters and versions are what they were; nothing stale is served. hash_content: identify files by the SHA-256 of
    their bytes instead of their time. Files are written whole or not at all, carry checksums, and hold no pickle; large
    ones are mapped. A damaged one is replaced with a warning. Raises ValueError for an item that can't be stored
    without pickle, and where the disk is full. The remaining arguments are MONAI's and have no effect: those that would
    change what is stored raise ValueError.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Transform | Sequence[Transform] | None,
        cache_dir: str | Path,
        hash_func: Callable[..., bytes] | None = None,
        pickle_module: str = "pickle",
        pickle_protocol: int = 2,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
        track_meta: bool = True,
        weights_only: bool = True,
        *,
        hash_content: bool = False,
    ) -> None:
        super().__init__(data, transform)
        check_hashes(_KEYS, hash_func=hash_func, hash_transform=hash_transform)
        check_monai("pickle_module", pickle_module, pickle_module == "pickle", "records hold no pickle")
        check_monai("weights_only", weights_only, weights_only, "records hold no pickle")
        self.cache_dir = expanded(cache_dir)
        self.hash_content = hash_content
        self.checked: dict[Any, tuple[int, ...]] = {}
        """The versions of records whose checksums were compared."""
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
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = read_record(file.fileno(), status.st_size)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        item = decode(data, verify=self.checked.get(name) != version)
        self.checked[name] = version
        return item


class LMDBDataset(PersistentDataset):
    """Items up to the first random transform are kept in one LMDB file in `cache_dir`.

    Filled by one process when the data set is made, while others wait; what is there already stays. Read without locks
    by every process for itself, after a fork or a spawn alike. Keys are those of `PersistentDataset`: nothing stale is
    served. For many small records, such as 2-D tiles, where a file each would cost more than its reading.
    progress: show a bar while filling. db_name: the beginning of the file's name. lmdb_kwargs: settings of `lmdb.open`
    for filling, such as map_size, which grows in any case. Raises ImportError without the package `lmdb`. The remaining
    arguments are MONAI's, as for `PersistentDataset`.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Transform | Sequence[Transform] | None,
        cache_dir: str | Path = "cache",
        hash_func: Callable[..., bytes] | None = None,
        db_name: str = "items",
        progress: bool = True,
        pickle_protocol: int = 2,
        hash_transform: Callable[..., bytes] | None = None,
        reset_ops_id: bool = True,
        lmdb_kwargs: Mapping[str, Any] | None = None,
        *,
        num_workers: int | None = None,
        hash_content: bool = False,
    ) -> None:
        self.progress, self.db_name, self.lmdb_kwargs = progress, db_name, dict(lmdb_kwargs or {})
        self.num_workers = num_workers
        hashes: dict[str, Any] = {"hash_func": hash_func, "hash_transform": hash_transform}
        super().__init__(data, transform, cache_dir, **hashes, hash_content=hash_content)

    def set_data(self, data: Sequence[Any]) -> None:
        """Take other data; what is not in the file yet is prepared now."""
        from filelock import FileLock  # which torch brings

        self.data = data
        self.path = self.cache_dir / f"{self.db_name}-{chain_identity(self.chain)}.lmdb"
        self.checked = {}
        self.keys = [item_identity(item, content=self.hash_content).encode() for item in data]
        with as_value_error(self.cache_dir), FileLock(self.path.with_suffix(".turn")):
            self._fill()

    def prepared(self, index: int) -> Any:
        record = reader(self.path).get(self.keys[index])
        if record is None:
            return self.prepare(index)
        try:
            item = decode(record, verify=index not in self.checked)
            self.checked[index] = ()
            return item
        except DamagedEntry as damage:
            log.warning("%s: item %d %s; it is prepared now: delete the file to fill it anew", self.path, index, damage)
            return self.prepare(index)

    def info(self) -> dict[str, Any]:
        """LMDB's statistics of the file, read by this process; "size" is the number of items, "filename" the file."""
        return {**reader(self.path).info(), "size": len(self), "filename": str(self.path.absolute())}

    def close(self) -> None:
        """Close the file in this process; the next access opens it again."""
        reader(self.path).close()

    def _fill(self) -> None:
        import lmdb

        stored = reader(self.path)
        missing = {key: index for index, key in enumerate(self.keys) if stored.get(key) is None}
        if not missing:
            return
        stored.close()
        size = max(_FIRST_SIZE, 2 * self.path.stat().st_size if self.path.exists() else 0)
        settings = {"map_size": size, "lock": False, "meminit": False} | self.lmdb_kwargs
        with closing(lmdb.open(str(self.path), **{**settings, "subdir": False, "readonly": False})) as environment:
            records = on_threads(
                lambda row: (row[0], b"".join(encode(self.prepare(row[1])))), missing.items(), self.num_workers
            )
            firsts = range(0, len(missing), _BATCH)
            with closing(records):
                for _ in with_progress(firsts, len(firsts), enabled=self.progress):
                    _put(environment, list(islice(records, _BATCH)))


class LmdbReader:
    """One file as one process reads it: LMDB allows each process to open a file once, however many data sets use it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.environment: Any = None
        self.lock = threading.Lock()

    def get(self, key: bytes) -> bytearray | None:
        """A copy of a record, or None where there is none or no file yet."""
        with self.lock:
            if not self._opened():
                return None
            with self.environment.begin(buffers=True) as view:
                value = view.get(key)
                return None if value is None else bytearray(value)

    def info(self) -> dict[str, Any]:
        with self.lock:
            return dict(self.environment.info()) if self._opened() else {}

    def _opened(self) -> bool:
        """Open the file, if it is there and not open yet."""
        import lmdb

        if self.environment is None and Path(self.path).exists():
            self.environment = lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)
        return self.environment is not None

    def close(self) -> None:
        """Close the file; the next `get` opens it again and sees what was written since."""
        with self.lock:
            if self.environment is not None:
                self.environment.close()
            self.environment = None


def reader(path: Path) -> LmdbReader:
    """This process's reader of a file. A forked process gets its own: an environment must not cross a fork."""
    return _reader(os.getpid(), str(path.resolve()))


@functools.cache
def _reader(_: int, path: str) -> LmdbReader:
    return LmdbReader(path)


def _put(environment: Any, records: list[tuple[bytes, bytes]]) -> None:
    """Write records in one transaction, in a larger file if they do not fit."""
    import lmdb

    while True:
        try:
            with environment.begin(write=True) as view:
                for key, record in records:
                    view.put(key, record)
            return
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])
