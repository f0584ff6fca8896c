"""Copies a remote source to local files for the ordinary readers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from hasten.cases.entries import load_json
from hasten.cases.fetch import DownloadLimits, Fetched, Missing, fetch, record_path
from hasten.cases.formats import second_file
from hasten.cases.locate import FileLocator, Remote, checked_url, join, local_name, parent, suffix
from hasten.cases.transport import RemoteFilesystems
from hasten.config.url import shown

log = logging.getLogger(__name__)

_LARGEST_LIST = 64 << 20
"""Bytes of a list of cases, which is read into memory."""
_THREADS = 8
_PROGRESS_EVERY_S = 10.0


class Downloader:
    """Fetches the files of one source into the folder of the local copies; its threads share it."""

    def __init__(self, folder: Path, limits: DownloadLimits | None = None) -> None:
        self.folder, self.limits = folder, limits or DownloadLimits()
        self.filesystems = RemoteFilesystems(self.limits.stall_s)

    def fetch(self, remote: Remote) -> Fetched:
        """The local copy of a file. Raises ValueError as `hasten.cases.fetch.fetch`."""
        return fetch(remote.url, self.folder, sha256=remote.sha256, limits=self.limits, filesystems=self.filesystems)

    def fetch_list(self, url: str) -> Path:
        """The local copy of a list. Raises ValueError as `fetch`."""
        limits = replace(self.limits, largest=_LARGEST_LIST)
        return fetch(url, self.folder, limits=limits, filesystems=self.filesystems).path

    def fetch_optional_list(self, url: str) -> Path | None:
        """The local copy of an optional list; removes the copy if the server no longer has the list."""
        try:
            return self.fetch_list(url)
        except Missing:
            stale = self.folder / local_name(url)
            for path in (record_path(stale), stale):
                path.unlink(missing_ok=True)
            return None


def mirror(url: str, downloader: Downloader) -> tuple[Path, FileLocator]:
    """The list of a remote source as a local file, and where its names start. None of its files is fetched yet.

    Of a folder it is its dataset.json. Raises ValueError.
    """
    url = checked_url(url.rstrip("/") if "?" not in url else url, "the source")
    is_folder = suffix(url) not in (".json", ".csv")
    listed = join(url, "dataset.json", shown(url)) if is_folder else url
    try:
        path = downloader.fetch_list(listed)
    except Missing as error:
        if not is_folder:
            raise
        raise Missing(
            f"{shown(url)}: has no dataset.json that lists its cases; name a dataset.json, or a JSON or CSV list."
        ) from error
    base = parent(listed)
    if suffix(listed) == ".csv" or _needs_labels(path):
        downloader.fetch_optional_list(join(base, "labels.json", shown(url)))
    return path, FileLocator(folder=downloader.folder / local_name(base), url=base, remote_dir=downloader.folder)


def _needs_labels(path: Path) -> bool:
    content = load_json(path)
    return not (isinstance(content, dict) and "labels" in content)


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
        futures = [pool.submit(downloader.fetch, remote) for remote in remotes]
        todo = set(futures)
        try:
            while todo:
                ended, todo = wait(todo, timeout=_PROGRESS_EVERY_S, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                if todo:
                    log.info("%d of %d remote files are complete", len(remotes) - len(todo), len(remotes))
        except BaseException:
            downloader.filesystems.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    _log_summary(len(remotes), [future.result() for future in futures], time.monotonic() - started)


def _log_summary(total: int, results: list[Fetched], seconds: float) -> None:
    new = [each for each in results if each.how == "new"]
    stale = sum(each.how == "stale" for each in results)
    mib = sum(each.size for each in new) / 2**20
    log.info("%d of %d remote files were fetched (%.1f MiB in %.1f s)", len(new), total, mib, seconds)
    if stale:
        log.warning("%d of %d remote files could not be compared with the server; their copies are used", stale, total)


def _distinct(files: Iterable[Remote]) -> list[Remote]:
    by_path: dict[Path, Remote] = {}
    for remote in files:
        known = by_path.get(remote.path)
        if known is not None and known.sha256 and remote.sha256 and known.sha256 != remote.sha256:
            raise ValueError(f"{shown(remote.url)}: is listed with two different SHA-256; correct the list.")
        if known is None or remote.sha256:
            by_path[remote.path] = remote
    return list(by_path.values())


def companions(files: Iterable[Remote]) -> list[Remote]:
    """Files that fetched images need: the other half of a .hdr/.img pair, the voxel file of a .mhd."""
    result = []
    for remote in files:
        beside = second_file(remote.path)
        if beside is not None:
            url = join(parent(remote.url), beside, shown(remote.url))
            result.append(Remote(url=url, path=remote.path.parent / beside))
    return result
