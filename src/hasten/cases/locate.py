"""Resolves the names in a list of cases: to paths relative to the list, or to URLs and their local copies."""

from __future__ import annotations

import hashlib
import os
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from hasten.config.url import is_url, shown

_LONGEST = 180
"""Bytes of a file name in the local copy; the names of partial files and records are made longer."""
_LONGEST_HERE = 255
"""Longest file name, in bytes, that common file systems accept."""
_SIGNATURES = frozenset(["x-amz-signature", "x-goog-signature", "signature", "sig"])
_SIGNED_WITH = re.compile(
    "x-amz-|x-goog-|signature|expires|awsaccesskeyid|googleaccessid|key-pair-id|policy|"
    "(sv|se|sp|sr|sig|st|spr|skoid|sktid|skt|ske|sks|skv)$"
)
_TOKENS = frozenset(["token", "access_token"])
_SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Allowed protocols. Some of fsspec's others read this machine's files, unpack archives or log in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A remote file and the path of its local copy."""

    url: str
    path: Path
    sha256: str | None = None
    """SHA-256 of the content, if the source declares it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLocator:
    """The base of the relative names in a list."""

    folder: Path
    url: str = ""
    """The URL of that folder if it is a local copy."""
    remote_dir: Path | None = None
    """The folder of the local copies of URLs."""

    def find(self, name: str, where: str, sha256: str | None = None) -> Path | Remote:
        """The file that a name in the list refers to; `where` is its place in errors.

        Raises ValueError for a name that leads out of a remote source, a URL that `checked_url` refuses, or one where
        copies have no place.
        """
        if not self.url and not is_url(name):
            if any(len(part.encode(errors="replace")) > _LONGEST_HERE for part in Path(name).parts):
                raise ValueError(f"{where}: {reprlib.repr(name)} is too long for a file name; use a shorter one.")
            path = self.folder / name
            if os.name != "nt" and ("\\" in name or PureWindowsPath(name).drive) and not path.exists():
                raise ValueError(f"{where}: {name} is written as on Windows; write it relative to the list, with /.")
            return path
        url = checked_url(name if is_url(name) else join(self.url, name, where), where)
        if self.remote_dir is None:
            raise ValueError(f"{where}: {shown(name)} is remote; pass remote_dir=, the folder for the local copy.")
        return Remote(url=url, path=self.remote_dir / local_name(url), sha256=sha256)


def join(url: str, name: str, where: str) -> str:
    """The URL of a file below a folder's URL. Raises ValueError for a name that leads out of the folder."""
    parts = PurePosixPath(name).parts
    outside = PureWindowsPath(name).drive or ".." in parts or not parts or parts[0].startswith("/")
    if outside or "\\" in name or "\0" in name:
        raise ValueError(f"{where}: {name!r} leads out of {shown(url)}; name a file below it, or a full URL.")
    path = "/".join(parts)
    if not _is_http(url):
        return f"{url.rstrip('/')}/{path}"
    return f"{url.partition('?')[0].rstrip('/')}/{quote(path)}"


def parent(url: str) -> str:
    """The URL of a file's folder, without query."""
    return url.partition("?")[0].rpartition("/")[0]


def server_of(url: str) -> str:
    """Protocol and server, or bucket, of a URL; without a login."""
    return "/".join(shown(url).split("/", 3)[:3])


def suffix(url: str) -> str:
    """The ending of a URL's file name, lower case."""
    return PurePosixPath(url.partition("?")[0]).suffix.lower()


def same_source(one: str, other: str) -> bool:
    """Whether two paths, or two URLs that may be signed differently, name the same data set."""
    if is_url(one) and is_url(other):
        return local_name(one) == local_name(other)
    return not is_url(one) and not is_url(other) and Path(one).resolve() == Path(other).resolve()


def local_name(url: str) -> Path:
    """The relative path of a URL's local copy: protocol, server and path; the same for each signature of a URL.

    A query that is more than a signature becomes a folder of its own; logins are left out. Raises ValueError for a path
    that leads out of the copy.
    """
    if not _is_http(url):
        scheme, _, path = url.partition("?")[0].partition("://")
        query = url.partition("?")[2]
        names = [part for part in path.split("/") if part]
    else:
        split = urlsplit(url)
        scheme, query = split.scheme, split.query
        names = [split.netloc.rpartition("@")[2], *(_unquoted(part) for part in split.path.split("/") if part)]
    if not names:
        raise ValueError(f"{shown(url)}: names no file; write the whole URL.")
    *folders, name = (_safe(part, url) for part in names)
    parameters = _unsigned(parse_qsl(query, keep_blank_values=True))
    if parameters:
        folders.append(f"query-{_digest(urlencode(parameters))}")
    return Path(scheme.lower(), *folders, name)


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def checked_url(url: str, where: str) -> str:
    """Return `url` as it is. Raises ValueError for any but plain http, S3, Google and Azure ones."""
    if "::" in url or url.partition("://")[0].lower() not in _SCHEMES:
        raise ValueError(
            f"{where}: {shown(url)} is not read; name a file beside the list, or a URL that begins with "
            f"{', '.join(_SCHEMES)} and holds no '::'."
        )
    try:
        urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{where}: {shown(url)} is not a valid URL ({error}); correct it.") from None
    return url


def _unquoted(part: str) -> str:
    plain = unquote(part)
    return part if "/" in plain or "\0" in plain else plain


def _safe(part: str, url: str) -> str:
    if part in (".", "..") or "\0" in part:
        raise ValueError(f"{shown(url)}: holds {part!r}, which leads elsewhere; write the URL without it.")
    if part.startswith("."):
        part = "_" + part  # hidden names are reserved for records and partial files
    if len(part.encode()) <= _LONGEST:
        return part
    return f"{_digest(part)}-{part.encode()[-_LONGEST + 20 :].decode(errors='ignore')}"


def _unsigned(query: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A query without its signature, which differs each time."""
    keys = {key.lower() for key, _ in query}
    signing = {key for key in keys if _SIGNED_WITH.match(key)} if keys & _SIGNATURES else set()
    return [(key, value) for key, value in query if key.lower() not in signing | _TOKENS]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
