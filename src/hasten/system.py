"""Calls that differ between Linux, macOS and Windows: locks, mapped files, and what becomes of files that are open.

What only Linux has is absent elsewhere, with the same results: control groups, the cores of a process, its end with
that of its parent.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None  # type: ignore[assignment]

BINARY: int = getattr(os, "O_BINARY", 0)
"""For `os.open`: without it Windows translates line breaks."""
_LOCKED_BYTE = 1 << 30
"""Windows keeps others from reading bytes that are locked: one behind any content."""
_MAP_FIXED = 0x10
_ZEROS = bytes(1 << 20)
_REPLACE_S, _PAUSE_S = 2.0, 0.02
_position = threading.Lock()
"""Held while the position of an open file is moved, where it must be."""


class Span(NamedTuple):
    """A file, and the bytes of a larger range that it is mapped to."""

    path: Path
    start: int
    """A multiple of the page size."""
    size: int
    """Size of the whole file; 0 maps nothing."""


def try_lock(path: Path) -> int | None:
    """A handle of `path`, a file that is made where there is none, with its lock; None while another handle has it.

    Also None where its owner has just removed the file: `path` may now be another one. The lock ends with the handle,
    or the process. Raises OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
    locked = False
    try:
        with suppress(BlockingIOError, PermissionError, FileNotFoundError):
            _lock(handle)
            # On Windows nobody can have removed it.
            locked = fcntl is None or os.path.samestat(os.fstat(handle), path.stat())
    finally:
        if not locked:
            os.close(handle)
    return handle if locked else None


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)


def remove_lock(path: Path, handle: int) -> None:
    """Remove a file that this handle of `try_lock` holds, and close the handle.

    Windows, where no open file can be removed, leaves it to a process that has just opened it.
    """
    steps: list[Callable[[], object]] = [path.unlink, partial(os.close, handle)]
    for step in steps if os.name != "nt" else reversed(steps):
        with suppress(OSError):
            step()


def replace_file(temporary: Path, path: Path) -> None:
    """`temporary` becomes `path`. Windows refuses while a process has `path` open: there it is tried again for a while.

    Raises OSError.
    """
    until = time.monotonic() + _REPLACE_S
    while os.name == "nt" and time.monotonic() < until:
        with suppress(PermissionError):
            temporary.replace(path)
            return
        time.sleep(_PAUSE_S)
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where its file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # as Windows says of every folder
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def reserve(file: IO[bytes], size: int) -> None:
    """Give a new file `size` zeros and their room on the disk. Raises OSError where it has none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, len(_ZEROS)):
        file.write(_ZEROS[: size - start])
    file.flush()


def read_at(handle: int, size: int, start: int) -> bytes:
    """Bytes of an open file, fewer at its end; threads may read at once."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, start)
    with _position:
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, size)


def map_privately(handle: int, size: int, offset: int) -> memoryview:
    """A range of an open file, to read and to change for oneself: a page is copied at its first change.

    offset: a multiple of the allocation granularity. The mapping ends with what refers to it. Where there is another
    way, not by the module `mmap`, each of whose mappings keeps a file handle open: the items of an epoch would exhaust
    the handles that a process may have. Raises OSError.
    """
    assert size > 0
    if not hasattr(mmap, "MAP_PRIVATE"):
        return memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_COPY, offset=offset))
    address = _mapped(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, handle, offset)
    return _view_of(address, size, _libc().munmap, address, size)


def map_files(spans: Sequence[Span], size: int) -> memoryview:
    """One read-only range of `size` bytes, in which each file lies where its span says; between them are zeros.

    The mapping ends with what refers to it. Writing to it ends the process. Where no place can be chosen (Windows),
    several files are read into memory. Raises OSError.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return _map_or_read(spans, size)
    # Pages of zeros, not unmapped ones: a copy of the whole range reads the gaps too.
    address = _mapped(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    view = _view_of(address, size, _libc().munmap, address, size)
    for span in spans:
        assert span.start % mmap.PAGESIZE == 0
        assert span.start + span.size <= size
        if span.size:
            with span.path.open("rb") as file:
                how = mmap.MAP_SHARED | _MAP_FIXED
                _mapped(address + span.start, span.size, mmap.PROT_READ, how, file.fileno(), 0)
    return view


def _map_or_read(spans: Sequence[Span], size: int) -> memoryview:
    if len(spans) > 1:
        whole = memoryview(mmap.mmap(-1, size))
        for span in spans:
            with span.path.open("rb") as file:
                file.readinto(whole[span.start : span.start + span.size])
        return whole
    import numpy as np  # not at the top: every command imports this module

    with spans[0].path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return _view_of(np.frombuffer(mapping, np.uint8).ctypes.data, size, mapping.close)


def _mapped(address: int | None, size: int, protection: int, flags: int, handle: int, offset: int) -> int:
    import ctypes

    result = _libc().mmap(address, size, protection, flags, handle, offset)
    if result == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def _view_of(address: int, size: int, end: Callable[..., object], *arguments: int) -> memoryview:
    """A mapping's bytes; it is ended when nothing refers to them any more."""
    import ctypes

    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: daemon threads may still read then, and the kernel reclaims everything anyway.
    weakref.finalize(block, end, *arguments).atexit = False
    return memoryview(block).cast("B")


def read_ahead(address: int, size: int) -> None:
    """Let the kernel read a mapping's pages in the background, if they are on the disk."""
    if hasattr(mmap, "MADV_WILLNEED"):
        start = address - address % mmap.PAGESIZE
        _libc().madvise(start, size + address - start, mmap.MADV_WILLNEED)


@cache
def _libc() -> Any:
    import ctypes  # takes milliseconds of every command

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    return libc


def text_of(path: Path) -> str:
    """The text of a file, such as one of the kernel's or a log; empty where there is none."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def boot_id() -> str:
    """Identifies the current boot of this machine; empty where the system does not report it."""
    return text_of(Path("/proc/sys/kernel/random/boot_id")).strip()


def ignores_case(folder: Path) -> bool:
    """Whether names that differ by case are one file in this folder; False for one that can't be written."""
    from tempfile import NamedTemporaryFile

    with suppress(OSError), NamedTemporaryFile(dir=folder, prefix="case-") as file:
        return Path(file.name).with_name(Path(file.name).name.upper()).exists()
    return False
