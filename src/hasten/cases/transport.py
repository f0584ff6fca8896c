"""Reads remote files through fsspec: metadata, bytes from an offset on, and errors by kind.

Nothing here touches the local disk. Retrying is the caller's: the retries of the libraries below are turned off, so
that the number of attempts and the waits are known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hasten.config.url import shown

T = TypeVar("T")
Kind = Literal["transient", "missing", "forbidden", "permanent"]

_HTTP = ("http", "https")
_VALIDATORS = ("ETag", "etag", "e_tag", "Content-MD5", "content_md5", "md5Hash", "crc32c", "Last-Modified")
_PASSING_STATUS = (408, 425, 429)
_SMALLEST_CHUNK = 1 << 18
_POLL_EVERY_S = 0.2


class TransferError(Exception):
    """An error of the server or the network; `transient` ones are worth a retry. Contains no secrets."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """The server's metadata of a file."""

    size: int | None
    """Size in bytes; None if the server does not report it."""
    validator: str
    """Changes when the content does (an ETag, a time); empty if the server sends none."""


class TransferStopped(Exception):
    """Whoever uses the filesystems has set their `stop`."""


class RemoteFilesystems:
    """The file systems behind the URLs of one source: opened once, shared by its threads.

    stall_s: how long a server may send nothing before that counts as a failure. Once `stop` is set, every call that
    waits for a server raises TransferStopped.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.stop = threading.Event()
        self.unreachable: set[str] = set()
        """Unreachable servers; existing copies of their files are used without asking again."""
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}

    def find(self, url: str) -> tuple[Any, str]:
        """The file system of a URL and the path in it. Raises ValueError if its package is not installed."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(
                f"{shown(url)}: is remote; install what reads it (pip install 'hasten[remote]')."
            ) from None
        scheme = url.partition("://")[0].lower()
        try:
            with self._lock:
                if scheme not in self._open:
                    options = {"use_listings_cache": False, **_options(scheme, self)}
                    self._open[scheme] = url_to_fs(url, **options)[0]
                    if scheme in ("s3", "s3a"):
                        self._open[scheme].retries = 1
                fs = self._open[scheme]
            return fs, fs._strip_protocol(url)
        except ImportError as error:
            raise ValueError(
                f"{shown(url)}: {scheme}:// needs another package ({error}); for s3 and https it is "
                "pip install 'hasten[remote]'."
            ) from None
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"{shown(url)}: can't be opened ({shown(str(error))}); check the URL.") from None

    def stat(self, url: str) -> Stat:
        """Raises TransferError; ValueError as `find`."""
        fs, path = self.find(url)
        info = self._run(lambda: fs.info(path))
        if info.get("type") == "directory":
            raise TransferError("missing", "it is a folder, not a file")
        size = info.get("size")
        validator = next((f"{key}: {info[key]}" for key in _VALIDATORS if info.get(key)), "")
        if not validator and not _is_http(fs):
            validator = f"ukey: {self._run(lambda: fs.ukey(path))}"
        return Stat(size=None if size is None else int(size), validator=validator)

    def read(self, url: str, start: int, stat: Stat, chunk: int) -> Iterator[tuple[int, bytes]]:
        """Pieces of a file as (offset, bytes), from `start` on, or from 0 if the server can't resume.

        A server may end the transfer early without an error: compare with the size. Raises TransferError; ValueError as
        `find`.
        """
        fs, path = self.find(url)
        if _is_http(fs):
            yield from self._stream(fs, path, start, stat, chunk)
        elif getattr(fs, "async_impl", False) and stat.size is not None:
            yield from self._ranges(fs, path, start, stat.size, max(chunk, 1))
        else:
            yield from self._file(fs, path, start, chunk)

    def _stream(self, fs: Any, path: str, start: int, stat: Stat, chunk: int) -> Iterator[tuple[int, bytes]]:
        headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        if start:
            # If-Range: if the file has changed, the server sends the whole new one instead of the rest.
            headers |= {"Range": f"bytes={start}-", "If-Range": stat.validator.partition(": ")[2]}
        # Any size but 0 or None, which would make the file system query the server once more.
        stream = self._run(lambda: fs.open(path, "rb", block_size=0, size=stat.size or 1, headers=headers))
        try:
            at = start if start and _is_resumed(stream.r, start) else 0
            while data := self._run(lambda: stream.read(chunk)):
                yield at, data
                at += len(data)
        finally:
            stream.close()

    def _ranges(self, fs: Any, path: str, start: int, size: int, chunk: int) -> Iterator[tuple[int, bytes]]:
        for at in range(start, size, chunk):
            end = min(at + chunk, size)
            data = self._run(lambda at=at, end=end: fs.cat_file(path, start=at, end=end))  # type: ignore[misc]
            if len(data) != end - at:
                raise TransferError("transient", f"bytes {at} to {end} were asked for, and {len(data)} came")
            yield at, data

    def _file(self, fs: Any, path: str, start: int, chunk: int) -> Iterator[tuple[int, bytes]]:
        file = self._run(lambda: fs.open(path, "rb"))
        try:
            self._run(lambda: file.seek(start))
            at = start
            while data := self._run(lambda: file.read(chunk)):
                yield at, data
                at += len(data)
        finally:
            file.close()

    def _run(self, action: Callable[[], T]) -> T:
        """The result of a blocking call, run on its own thread, which is abandoned when the call times out.

        Raises TransferError, TransferStopped.
        """
        result: Future[T] = Future()

        def work() -> None:
            try:
                result.set_result(action())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=work, name="hasten-remote", daemon=True).start()
        deadline = time.monotonic() + self.stall_s
        while not result.done() and (remaining := deadline - time.monotonic()) > 0:
            if self.stop.is_set():
                raise TransferStopped
            wait([result], min(remaining, _POLL_EVERY_S))
        if not result.done():
            raise TransferError("transient", f"nothing came for {self.stall_s:g} s")
        if (error := result.exception()) is not None:
            raise _transfer_error(error, self.stall_s) from None
        return result.result()


def chunk_of(largest: int, attempt: int) -> int:
    """Smaller after every failure: a slow connection must deliver a whole chunk before it counts as stalled."""
    return max(largest >> 2 * attempt, min(largest, _SMALLEST_CHUNK))


def _options(scheme: str, filesystems: RemoteFilesystems) -> dict[str, Any]:
    """Timeouts for the libraries below fsspec, so that stalled requests end there too. The user's settings win."""
    from fsspec.config import conf

    user = conf.get(scheme, {})
    if scheme in _HTTP:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=filesystems.stall_s, sock_read=filesystems.stall_s)
        # No decompression: a server may declare a .nii.gz as gzip-encoded, and its raw bytes are needed. trust_env is
        # for proxies and ~/.netrc.
        settings = {"timeout": timeout, "auto_decompress": False, "trust_env": True}
        return {"client_kwargs": {**settings, **user.get("client_kwargs", {})}}
    if scheme in ("s3", "s3a"):
        waits = {"connect_timeout": filesystems.stall_s, "read_timeout": filesystems.stall_s}
        settings = {**waits, "retries": {"total_max_attempts": 1}}
        # A new instance with the current credentials. fsspec caches and shares others, which is better for HTTP: the
        # garbage collector may end an HTTP session while a lock is held that the threads of fsspec need.
        return {"skip_instance_cache": True, "config_kwargs": {**settings, **user.get("config_kwargs", {})}}
    return {}


def _is_http(fs: Any) -> bool:
    return "http" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _is_resumed(response: Any, start: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _transfer_error(error: BaseException, seconds: float) -> TransferError:
    # fsspec's HTTP turns whatever failed into a FileNotFoundError with the true reason behind it.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = _status(error)
    if status is not None and status < 600:
        text = f"the server answers {status}"
        if status in (404, 410):
            return TransferError("missing", text)
        if status in (401, 403, 407):
            return TransferError("forbidden", text)
        if status == 416 or status in _PASSING_STATUS or status >= 500:
            return TransferError("transient", text)
        return TransferError("permanent", text)
    kind = type(error).__name__
    message = shown(str(error)).strip()
    text = f"{kind}: {message}" if message else kind
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return TransferError("missing", "there is no such file")
    if isinstance(error, PermissionError) or "Credentials" in kind:
        return TransferError("forbidden", text)
    if kind in ("ClientPayloadError", "IncompleteRead"):
        return TransferError("transient", "the connection ended early")
    if "Timeout" in kind:
        return TransferError("transient", f"nothing came for {seconds:g} s")
    if isinstance(error, ValueError | TypeError | NotImplementedError | ImportError):
        return TransferError("permanent", text)
    return TransferError("transient", text)


def _status(error: BaseException) -> int | None:
    """The HTTP status of an aiohttp or botocore error, also if s3fs wraps it."""
    for each in (error, error.__cause__):
        status = getattr(each, "status", None)
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int) and status >= 400:
            return status
    return None
