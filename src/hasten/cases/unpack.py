"""Unpacks archives safely and atomically: no file outside the target, and all files or none."""

from __future__ import annotations

import errno
import gzip
import lzma
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from hasten.config.patterns import first_few
from hasten.config.size import size_text

_ROOM = 1.05


def unpack(archive: Path, target: Path, *, top: str) -> None:
    """Unpack the folder `top` of a tar archive (of any compression) to become `target`, which must not exist.

    Files of other systems' housekeeping (._NAME, .DS_Store, __MACOSX) are left out. Nothing is left behind on failure.
    Raises ValueError, naming archive and member: a damaged or cut-off archive, a member that leads out of its folder or
    is no file, folder or inner link, no folder `top`, no room on the disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        _untar(archive, fresh)
        folder = fresh / top
        if not folder.is_dir():
            names = first_few(sorted(path.name for path in fresh.iterdir())) or "nothing"
            raise ValueError(
                f"{archive}: holds no folder {top}, but {names}, so it is not the archive that was expected; "
                "remove it and fetch the right one."
            )
        if target.is_dir():
            target.rmdir()
        folder.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(f"{target}: the disk is full; free some space or name another folder.") from None
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _untar(archive: Path, into: Path) -> None:
    try:
        with tarfile.open(archive) as file:
            members = [member for member in file.getmembers() if not _is_metadata(member.name)]
            while file.fileobj.read(1 << 20):  # up to the checksum at the compressed end
                pass
            _check_room(archive, into, sum(member.size for member in members))
            for member in members:
                _check_name(archive, member.name)
                try:
                    file.extract(member, into, filter="data")
                except tarfile.FilterError as error:
                    raise _unsafe(archive, member.name, str(error)) from None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(archive, error) from None


def _is_metadata(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith("._") or part in (".DS_Store", "__MACOSX") for part in parts)


def _check_name(archive: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\\" in name or (parts and ":" in parts[0]):
        raise _unsafe(archive, name, "its name leads out of the folder")


def _check_room(archive: Path, into: Path, size: int) -> None:
    free = shutil.disk_usage(into).free
    if size * _ROOM > free:
        raise ValueError(
            f"{archive}: needs {size_text(size)} unpacked, but {into.parent} has {size_text(free)} free; free some "
            "space or name another folder. The archive is kept."
        )


def _unsafe(archive: Path, name: str, why: str) -> ValueError:
    return ValueError(
        f"{archive}: its member {name!r} is not unpacked, nor anything else: {why}. Don't use this archive."
    )


def _damaged(archive: Path, error: Exception) -> ValueError:
    return ValueError(f"{archive}: is damaged or cut off ({error}); remove it and fetch it again.")
