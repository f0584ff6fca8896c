"""Appending whole lines to a file, so that a kill, a full disk or a second run leaves no partial line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_TAIL = 1 << 16


class LineFile:
    """A file that grows by whole lines, each in one write. It is opened at the first line, and again after a failure.

    header: the line that a new file begins with.
    """

    def __init__(self, path: Path, *, header: str = "") -> None:
        self.path, self.header = path, header
        self._handle: int | None = None

    def first_line(self) -> str:
        """Of the file as it is; the header where there is none yet. Raises OSError."""
        if self.path.exists():
            with self.path.open("rb") as file:
                line = file.readline(_TAIL)
            if line.endswith(b"\n"):
                return line.decode(errors="replace").rstrip("\r\n")
        return self.header

    def write(self, text: str) -> None:
        """Add `text`, whole lines. Raises OSError where it could not be written whole; nothing of it is there then."""
        if self._handle is None:
            self._handle = self._open()
        data = text.encode()
        written = os.write(self._handle, data)
        if written < len(data):  # the disk is full
            os.ftruncate(self._handle, max(0, os.fstat(self._handle).st_size - written))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _open(self) -> int:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            size = _cut_half_line(handle)
            if size == 0 and self.header:
                os.write(handle, f"{self.header}\n".encode())
        except BaseException:
            os.close(handle)
            raise
        return handle


def _cut_half_line(handle: int) -> int:
    """Remove what follows the last line end, and return the bytes that are left."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, _TAIL, max(0, size - _TAIL))
    if size and not tail.endswith(b"\n"):
        keep = tail.rfind(b"\n") + 1
        # No line of ours is that long: a file that someone else made is left as it is.
        if keep or size <= _TAIL:
            size = size - len(tail) + keep
            os.ftruncate(handle, size)
    return size
