"""Copies the files of a remote source, read by fsspec, to local ones: once, checked, and never half a file."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from hasten.cases.entries import load_json
from hasten.cases.itk import data_file
from hasten.cases.locate import FileLocator, Remote, checked_url, join, local_name, parent, server_of, suffix
from hasten.config.size import size_text
from hasten.config.url import shown
from hasten.files import hash_file, replacing
from hasten.system import boot_id, remove_lock, replace_file, try_lock

log = logging.getLogger(__name__)

_LARGEST_LIST = 64 << 20
"""Bytes of a list of cases, which is read into memory."""
_LARGEST_UNSIZED = 16 << 30
"""Bytes of a file whose size the server does not report."""
_THREADS = 8
_PROGRESS_EVERY_S = 10.0
_CHUNK = 8 << 20
_VALIDATORS = ("ETag", "etag", "e_tag", "Content-MD5", "content_md5", "md5Hash", "crc32c", "Last-Modified")
"""fsspec's names of what changes with the content of a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A fetched file: the size in bytes, the SHA-256 in hexadecimal digits, and the server's version of it."""

    url: str
    """Address without login and query."""
    size: int
    sha256: str
    version: str
    mtime_ns: int
    """Modification time of the local file, so that a changed one is noticed without reading it."""


class Missing(ValueError):
    """The server reports that there is no such file."""


class _ServerError(Exception):
    """A failure that may pass. Holds no secrets."""


class Downloader:
    """Copies the files of one source into a folder; its threads share it."""

    stall_s = 60.0
    """Seconds without a byte that count as a failure."""
    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """Pause after each failure; one more attempt than pauses is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop = threading.Event()
        """Ends the waiting of all threads."""
        self._gone: set[str] = set()
        """Unreachable servers; existing copies of their files are used without asking again."""

    def fetch(self, url: str, *, sha256: str | None = None, largest: int | None = None) -> Path:
        """A complete local copy of `url`, at `folder / local_name(url)`.

        A copy that is complete and, as far as the server reports, unchanged is kept, and used with a warning if the
        server can't be reached. A copy whose hash is the requested `sha256` is used without asking the server.
        Raises ValueError: no such file (Missing), no access, another hash than `sha256`, more bytes than `largest`, a
        disk that fails; a server that fails too often: a later call resumes where this one stopped.
        """
        target, sha256 = self.folder / local_name(url), sha256 and sha256.lower()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = complete_copy(target)
            if copy is not None and (copy.sha256 == sha256 or (sha256 is None and server_of(url) in self._gone)):
                return target
            last: Exception = _ServerError("stopped")
            for pause in (*self.waits_s, None):
                try:
                    self._attempt(url, target, copy, sha256, largest)
                    return target
                except _ServerError as error:
                    last = error
                log.info("%s: %s", shown(url), last)
                if self.stop.wait(pause or 0.0):
                    break
        except OSError as error:
            raise ValueError(
                f"{target}: can't be written ({error.strerror or error}); free some space, or name a folder on another "
                "disk (cache.dir or $HASTEN_CACHE; of public data --to or $HASTEN_DATA)."
            ) from error
        if copy is None or sha256 is not None:
            raise ValueError(
                f"{shown(url)}: can't be fetched after {len(self.waits_s) + 1} attempts ({last}); check the network "
                "and the server, then run again: the download resumes where it stopped."
            )
        if server_of(url) not in self._gone:
            self._gone.add(server_of(url))
            log.warning("%s: can't be reached (%s); existing copies are used unchecked: %s", shown(url), last, target)
        return target

    def _attempt(
        self, url: str, target: Path, copy: FileRecord | None, sha256: str | None, largest: int | None
    ) -> None:
        fs, path = _file_system(url, self.stall_s)
        size, version = _stat(fs, path, url)
        if copy is not None and version and copy.version == version:
            _check_hash(url, copy.sha256, sha256)
            return
        largest = _LARGEST_UNSIZED if largest is None and size is None else largest
        _check_size(url, size or 0, largest)
        with self._partial(target, version) as partial:
            # The previous owner of the lock may have fetched it.
            copy = complete_copy(target)
            if copy is not None and version and copy.version == version:
                _check_hash(url, copy.sha256, sha256)
                return
            with partial.open("r+b") as file:
                self._transfer(fs, path, url, (size, version), file, largest)
                os.fsync(file.fileno())
            if _stat(fs, path, url) != (size, version):
                os.truncate(partial, 0)
                raise _ServerError("it changed while it was fetched")
            digest = hash_file(partial)
            _check_hash(url, digest, sha256)
            _publish(partial, target, copy, url=shown(url), sha256=digest, version=version)

    def _transfer(
        self, fs: Any, path: str, url: str, known: tuple[int | None, str], file: BinaryIO, largest: int | None
    ) -> None:
        """Append the missing bytes to `file`."""
        size, version = known
        held = file.seek(0, os.SEEK_END)
        if held and held == size:
            return  # all came, but the process ended before it was published
        with _server_errors(url):
            stream, start = _open_at(fs, path, held, size, version)
        with closing(stream):
            file.seek(start)
            file.truncate()
            while True:
                with _server_errors(url):
                    block = stream.read(_CHUNK)
                if not block:
                    break
                if self.stop.is_set():
                    raise _ServerError("stopped")
                file.write(block)
                _check_size(url, file.tell(), largest)
        file.flush()
        if size is not None and file.tell() != size:
            if file.tell() > size:
                file.truncate(0)
            raise _ServerError(f"it ended after {file.tell()} of {size} bytes")

    @contextmanager
    def _partial(self, target: Path, version: str) -> Iterator[Path]:
        """The locked partial file, which stays after a failure of the server or a stop: a later attempt resumes it.

        A note beside it says of which version it is, and since which boot: after a crash it may have holes.
        """
        partial, note, lock = (target.with_name(f".{target.name}.{end}") for end in ("partial", "version", "lock"))
        key = f"{version or token_hex(8)} {boot_id()}"
        while (handle := try_lock(lock)) is None:
            if self.stop.wait(0.1):
                raise _ServerError("stopped")
        try:
            if not partial.exists() or not note.exists() or note.read_text(encoding="utf-8") != key:
                partial.write_bytes(b"")
                note.write_text(key, encoding="utf-8")
            yield partial
        except _ServerError:
            raise
        except (OSError, ValueError):
            for each in (partial, note):
                each.unlink(missing_ok=True)
            raise
        else:
            for each in (partial, note):
                each.unlink(missing_ok=True)
        finally:
            remove_lock(lock, handle)


def mirror(url: str, downloader: Downloader) -> tuple[Path, FileLocator]:
    """The list of a remote source as a local file, and where its names start. None of its files is fetched yet.

    Of a folder it is its dataset.json. Raises ValueError.
    """
    url = checked_url(url.rstrip("/") if "?" not in url else url, "the source")
    is_folder = suffix(url) not in (".json", ".csv")
    listed = join(url, "dataset.json", shown(url)) if is_folder else url
    try:
        path = downloader.fetch(listed, largest=_LARGEST_LIST)
    except Missing as error:
        if not is_folder:
            raise
        raise Missing(
            f"{shown(url)}: has no dataset.json that lists its cases; name a dataset.json, or a JSON or CSV list."
        ) from error
    base = parent(listed)
    content = load_json(path) if suffix(listed) != ".csv" else None
    if not isinstance(content, dict) or "labels" not in content:
        labels = join(base, "labels.json", shown(url))
        try:
            downloader.fetch(labels, largest=_LARGEST_LIST)
        except Missing:  # a copy is of before it was removed there
            stale = downloader.folder / local_name(labels)
            for each in (record_path(stale), stale):
                each.unlink(missing_ok=True)
    return path, FileLocator(folder=downloader.folder / local_name(base), url=base, remote_dir=downloader.folder)


def fetch_all(files: Iterable[Remote], downloader: Downloader) -> None:
    """Local copies of all files, on several threads, with a line of progress now and then. Raises ValueError.

    The first error ends the others. Once a server is unreachable, complete copies are used without asking it again.
    """
    remotes = _distinct(files)
    if not remotes:
        return
    started = time.monotonic()
    log.info("%d remote files: checking and fetching into %s", len(remotes), downloader.folder)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hasten-fetch") as pool:
        todo = {pool.submit(downloader.fetch, remote.url, sha256=remote.sha256) for remote in remotes}
        try:
            while todo:
                ended, todo = wait(todo, timeout=_PROGRESS_EVERY_S, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                if todo:
                    log.info("%d of %d remote files are complete", len(remotes) - len(todo), len(remotes))
        except BaseException:
            downloader.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    log.info("%d remote files are complete (%.1f s)", len(remotes), time.monotonic() - started)


def companions(files: Iterable[Remote]) -> list[Remote]:
    """The voxel files of fetched .mhd and .nhdr headers."""
    result = []
    for remote in files:
        beside = data_file(remote.path)
        if beside is not None:
            url = join(parent(remote.url), beside, shown(remote.url))
            result.append(Remote(url=url, path=remote.path.parent / beside))
    return result


def record_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched")


def complete_copy(target: Path) -> FileRecord | None:
    """The record of a complete local copy, or None: its size is compared, and its hash where its time differs."""
    try:
        status = target.stat()
        record = FileRecord(**json.loads(record_path(target).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):
        log.warning("%s: is damaged; what it describes is downloaded again", record_path(target))
        return None
    if status.st_size == record.size and (status.st_mtime_ns == record.mtime_ns or hash_file(target) == record.sha256):
        return record
    log.warning("%s: is not what was fetched; it is downloaded again", target)
    return None


def _publish(partial: Path, target: Path, before: FileRecord | None, *, url: str, sha256: str, version: str) -> None:
    """Turn the partial file into the copy. A copy with the same bytes stays, so that its cache entries stay valid."""
    source = target if before is not None and before.sha256 == sha256 else partial
    status = source.stat()
    record = FileRecord(url=url, size=status.st_size, sha256=sha256, version=version, mtime_ns=status.st_mtime_ns)
    # The record first: beside a file of another size or time it does not count.
    path = record_path(target)
    with replacing(path, path.with_name(f"{path.name}.{token_hex(4)}.partial")) as file:
        file.write(json.dumps(asdict(record)).encode("ascii"))
    if source is partial:
        replace_file(partial, target)


def _distinct(files: Iterable[Remote]) -> list[Remote]:
    by_path: dict[Path, Remote] = {}
    for remote in files:
        known = by_path.get(remote.path)
        if known is not None and known.sha256 and remote.sha256 and known.sha256 != remote.sha256:
            raise ValueError(f"{shown(remote.url)}: is listed with two different SHA-256; correct the list.")
        if known is None or remote.sha256:
            by_path[remote.path] = remote
    return list(by_path.values())


def _check_hash(url: str, sha256: str, wanted: str | None) -> None:
    if wanted not in (None, sha256):
        raise ValueError(
            f"{shown(url)}: has the SHA-256 {sha256}, but {wanted} is asked for; correct the hash in the list, or find "
            "out who changed the file."
        )


def _check_size(url: str, size: int, largest: int | None) -> None:
    if largest is not None and size > largest:
        raise ValueError(
            f"{shown(url)}: has {size_text(size)} or more, and {size_text(largest)} at most are taken; check the URL, "
            "or copy the file here by other means and name the copy."
        )


def _file_system(url: str, stall_s: float) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it. Raises ValueError if its package is not installed."""
    scheme = url.partition("://")[0].lower()
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url, use_listings_cache=False, **_options(scheme, stall_s))
    except ImportError as error:
        raise ValueError(
            f"{shown(url)}: {scheme}:// needs another package ({error}); for s3 and https it is pip install "
            "'hasten[remote]'."
        ) from None
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{shown(url)}: can't be opened ({shown(str(error))}); check the URL.") from None
    return fs, path


def _options(scheme: str, stall_s: float) -> dict[str, Any]:
    """Timeouts for the libraries below fsspec. The user's settings of fsspec win."""
    from fsspec.config import conf

    user = conf.get(scheme, {})
    if scheme in ("http", "https"):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s)
        # No decompression: a server may declare a .nii.gz as gzip-encoded, and its raw bytes are needed. trust_env is
        # for proxies and ~/.netrc.
        settings = {"timeout": timeout, "auto_decompress": False, "trust_env": True}
        return {"client_kwargs": {**settings, **user.get("client_kwargs", {})}}
    if scheme in ("s3", "s3a"):
        waits = {"connect_timeout": stall_s, "read_timeout": stall_s}
        # A new instance, with the current credentials.
        return {"skip_instance_cache": True, "config_kwargs": {**waits, **user.get("config_kwargs", {})}}
    return {}


def _is_http(fs: Any) -> bool:
    return "http" in fs.protocol


def _stat(fs: Any, path: str, url: str) -> tuple[int | None, str]:
    """The size of a file if the server reports it, and its version: what changes when the content does, or ""."""
    with _server_errors(url):
        info = fs.info(path)
        validator = next((f"{key}: {info[key]}" for key in _VALIDATORS if info.get(key)), "")
        if not validator and not _is_http(fs):
            validator = f"ukey: {fs.ukey(path)}"
    if info.get("type") == "directory":
        raise Missing(f"{shown(url)}: is a folder, not a file; correct the URL or what names it.")
    return info.get("size"), validator


def _open_at(fs: Any, path: str, start: int, size: int | None, version: str) -> tuple[Any, int]:
    """A file from byte `start` on, or from 0 if the server can't resume; and which of the two."""
    if not _is_http(fs):
        file = fs.open(path, "rb", block_size=_CHUNK, cache_type="none")
        file.seek(start)
        return file, start
    headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
    if start:
        # If-Range: if the file has changed, the server sends the whole new one instead of the rest.
        headers |= {"Range": f"bytes={start}-", "If-Range": version.partition(": ")[2]}
    # Any size but 0 or None, which would make the file system query the server once more.
    stream = fs.open(path, "rb", block_size=0, size=size or 1, headers=headers)
    resumed = stream.r.status == 206 and stream.r.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    return stream, start if resumed else 0


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    """Errors of the server and the network as Missing, as a ValueError for lack of access, or as `_ServerError`."""
    try:
        yield
    except Exception as error:  # each library has errors of its own
        raise _explained(error, shown(url)) from None


def _explained(error: BaseException, url: str) -> Exception:
    # fsspec's HTTP turns whatever failed into a FileNotFoundError with the true reason behind it.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = getattr(error, "status", None)
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    text = f"the server answers {status}" if status else shown(f"{type(error).__name__}: {error}")
    if isinstance(error, FileNotFoundError | IsADirectoryError) or status in (404, 410):
        return Missing(f"{url}: is not there ({text}); correct the URL or what names it.")
    if isinstance(error, PermissionError) or status in (401, 403, 407) or "Credentials" in type(error).__name__:
        return ValueError(
            f"{url}: access is refused ({text}); give credentials as the service reads them (for S3: AWS_PROFILE or "
            "AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for public data)."
        )
    return _ServerError(text)
