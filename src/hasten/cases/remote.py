"""Copies a remote source to local files for the ordinary readers."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from hasten.cases.entries import load_json
from hasten.cases.fetch import Fetched, Missing, Patience, Unreachable, fetch
from hasten.cases.formats import ENDINGS, ending, second_file
from hasten.cases.image_folders import PAIR_FOLDERS
from hasten.cases.locate import FileLocator, Remote, checked_url, join, local_name, parent, suffix
from hasten.cases.nnunet import is_nnunet
from hasten.cases.record import read_json, record_path, write_json
from hasten.cases.transport import Stores, TransferError
from hasten.config.url import shown

log = logging.getLogger(__name__)

_LARGEST_LIST = 64 << 20
"""Bytes of a list of cases, which is read into memory."""
_THREADS = 8
_PROGRESS_EVERY_S = 10.0
_LISTING = ".listing.fetched"


class Downloader:
    """Fetches the files of one source into the folder of the local copies; its threads share it."""

    def __init__(self, folder: Path, patience: Patience | None = None) -> None:
        self.folder, self.patience = folder, patience or Patience()
        self.stores = Stores(self.patience.stall_s)

    def fetch(self, remote: Remote) -> Fetched:
        """The local copy of a file. Raises ValueError as `hasten.cases.fetch.fetch`."""
        return fetch(remote.url, self.folder, sha256=remote.sha256, patience=self.patience, stores=self.stores)

    def fetch_list(self, url: str) -> Path:
        """The local copy of a list. Raises ValueError as `fetch`."""
        patience = replace(self.patience, largest=_LARGEST_LIST)
        return fetch(url, self.folder, patience=patience, stores=self.stores).path

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
    """The list of a remote source as a local file, or its local folder, and where its names start.

    Of the files that a list names none is fetched yet; those of a folder without one are. Raises ValueError.
    """
    url = checked_url(url.rstrip("/") if "?" not in url else url, "the source")
    if suffix(url) not in (".json", ".csv"):
        return _mirror_folder(url, downloader)
    path = downloader.fetch_list(url)
    place = _place(parent(url), downloader)
    if suffix(url) == ".csv" or _needs_labels(path):
        downloader.fetch_optional_list(join(place.url, "labels.json", shown(url)))
    return path, place


def _place(url: str, downloader: Downloader) -> FileLocator:
    return FileLocator(folder=downloader.folder / local_name(url), url=url, remote_dir=downloader.folder)


def _needs_labels(path: Path) -> bool:
    content = load_json(path)
    return not (isinstance(content, dict) and "labels" in content)


def _mirror_folder(url: str, downloader: Downloader) -> tuple[Path, FileLocator]:
    place = _place(url, downloader)
    try:
        listed = downloader.fetch_optional_list(join(url, "dataset.json", shown(url)))
    except Unreachable:
        if not (place.folder / _LISTING).exists():
            raise
        listed = None
    if listed is not None:
        content = load_json(listed)
        if is_nnunet(content) and "dataset" not in content:
            _mirror_pairs(place, downloader)
        return listed, place
    _mirror_pairs(place, downloader)
    return place.folder, place


def _mirror_pairs(place: FileLocator, downloader: Downloader) -> None:
    """Fetch images and labels of a folder without a list of cases; remove copies of files that the server removed."""
    where = shown(place.url)
    if place.url.lower().startswith(("http://", "https://")):
        raise ValueError(
            f"{where}: has no dataset.json that lists its cases, and https can't list folders; name a dataset.json "
            'with "training", or a JSON or CSV list.'
        )
    record = place.folder / _LISTING
    try:
        names = _list_pairs(place.url, downloader)
        extra = downloader.fetch_optional_list(join(place.url, "labels.json", where))
        log.debug("%s: labels.json %s", where, "found" if extra else "not there")
    except Unreachable as error:
        names = read_json(record)
        if names is None:
            raise
        log.warning("%s; its existing copy is used unchecked: %s", error, place.folder)
    if not names:
        raise ValueError(
            f"{where}: has no known layout: a dataset.json, images/ with labels/, or imagesTr/ with labelsTr/; "
            "name a dataset.json, or a JSON or CSV list."
        )
    urls = [join(place.url, f"{folder}/{name}", where) for folder, inside in names.items() for name in inside]
    fetch_all([Remote(url=url, path=downloader.folder / local_name(url)) for url in urls], downloader)
    for pair in PAIR_FOLDERS:
        for folder in pair:
            _remove_gone(place.folder / folder, names.get(folder))
    write_json(record, names)


def _list_pairs(url: str, downloader: Downloader) -> dict[str, list[str]]:
    for pair in PAIR_FOLDERS:
        inside = {folder: _list(f"{url}/{folder}", downloader) for folder in pair}
        if all(names is not None for names in inside.values()):
            return {folder: names for folder, names in inside.items() if names is not None}
    return {}


def _list(url: str, downloader: Downloader) -> list[str] | None:
    waits = downloader.patience.waits_s
    for attempt in range(len(waits) + 1):
        try:
            names = downloader.stores.list(url)
        except TransferError as error:
            if error.kind != "transient" or attempt == len(waits):
                kind = Unreachable if error.kind == "transient" else ValueError
                raise kind(f"{shown(url)}: can't be listed ({error}); check the URL, network and access.") from None
            time.sleep(waits[attempt])
        else:
            return None if names is None else [name for name in names if _is_image_file(name)]
    raise AssertionError


def _is_image_file(name: str) -> bool:
    """Whether it is an image, or the separate voxel file of one."""
    return not name.startswith(".") and (ending(Path(name)) in ENDINGS or "raw" in name.lower().partition(".")[2])


def _remove_gone(folder: Path, names: list[str] | None) -> None:
    if names is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    keep = {*names, *(record_path(folder / name).name for name in names)}
    for path in folder.iterdir():
        if path.name not in keep and not path.name.endswith(".partial"):
            path.unlink(missing_ok=True)


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
            downloader.stores.stop.set()
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
