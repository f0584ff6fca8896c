"""Checkpoint files: written atomically, verified by a hash on reading, readable by plain `torch.load`.

A file is what `torch.save` writes, followed by 8 bytes of mark and 32 bytes of SHA-256 over what came before.
`torch.load` ignores this trailer; `read_checkpoint` requires it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from hasten.files import first_line, replacing
from hasten.system import sync_folder

_MARK = b"HASTEN01"
_END = len(_MARK) + 32
_ATOMS = {type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device}
_TENSORS = {Tensor, nn.Parameter}


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write `content` (tensors, numbers, strings, containers of them) under `path` in one rename.

    Raises OSError (no space, say) with the previous file untouched, and ValueError, with nothing written, for a value
    that could not be read back without running code from the file.
    """
    _require_data(content, path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed process leaves files named `.NAME.pt.*`, which the next process removes.
    with replacing(path) as file:
        hashed = _Hashed(file)
        torch.save(content, hashed)  # type: ignore[arg-type]
        if hashed.error is not None:
            raise hashed.error
        file.write(_MARK + hashed.digest())
    sync_folder(path.parent)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint. No code in the file is run (`weights_only`).

    Raises ValueError that names the file if it is absent, cut off or altered, or holds more than data.
    """
    if not path.is_file():
        raise ValueError(
            f"{path}: no such checkpoint; the run was stopped before it wrote one, or this is not a run directory; "
            "name a directory that `hasten train --out` wrote, or a .pt file in its checkpoints/"
        )
    try:
        with path.open("rb") as file:
            body = file.read(max(0, os.fstat(file.fileno()).st_size - _END))
            end = file.read()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror or error}); check the disk and its rights"
        ) from error
    if end != _MARK + hashlib.sha256(body).digest():
        # The other file is no substitute: last.pt resumes a run, best.pt predicts.
        raise ValueError(
            f"{path}: damaged (its checksum does not hold); restore it from a copy, or train again into another folder"
        )
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # a crafted file can make the reader raise anything
        raise ValueError(
            f"{path}: not a checkpoint as Hasten writes it, and nothing in it was run ({first_line(error)}); use a "
            "file you trust"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a checkpoint as Hasten writes it (it holds a {type(content).__name__})")
    return content


def is_checkpoint(path: Path) -> bool:
    """Whether a file ends as `write_checkpoint` ends one; its content may be damaged all the same."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END))
        return file.read(len(_MARK)) == _MARK


class _Hashed:
    """Passes bytes on and hashes them, so that the whole file need not lie in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._sha = file, hashlib.sha256()
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        # An exception must not pass through torch's C++ writer: it is stored, and further writes are dropped.
        if self.error is None:
            try:
                self._file.write(data)
                self._sha.update(data)
            except BaseException as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        pass

    def digest(self) -> bytes:
        return self._sha.digest()


def _require_data(value: Any, at: str) -> None:
    """Raise ValueError for what `weights_only` would refuse to read, by exact type: a NumPy float is no float here."""
    kind = type(value)
    if kind in _ATOMS or kind in _TENSORS:
        return
    if kind in (dict, OrderedDict, Counter):
        for key, item in value.items():
            _require_data(key, f"{at}.{key}")
            _require_data(item, f"{at}.{key}")
    elif kind in (list, tuple, set):
        for number, item in enumerate(value):
            _require_data(item, f"{at}[{number}]")
    else:
        raise ValueError(
            f"{at}: a {kind.__module__}.{kind.__qualname__} could not be read back without running code; "
            "save tensors, numbers, strings, and dicts, lists and tuples of them"
        )


class Checkpoints:
    """The checkpoint to resume from: `write` puts a new one in the place of last.pt, in one rename; `newest` reads it.

    One process at a time writes to a folder: of several ranks, the first.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "last.pt"
        self._swept = False

    def write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint, `content["step"]` steps into the run.

        Raises OSError with the one before intact, and ValueError as `write_checkpoint` does.
        """
        # What a killed process left half-written goes, and what it completed is made durable, once.
        if not self._swept and self.path.parent.exists():
            sync_folder(self.path.parent)
            for leftover in self.path.parent.glob(f".{self.path.name}.*"):
                leftover.unlink(missing_ok=True)
        self._swept = True
        write_checkpoint(self.path, content)

    def newest(self) -> dict[str, Any] | None:
        """The checkpoint's content; None if there is none. Raises ValueError as `read_checkpoint` does."""
        if not self.path.exists():
            return None
        content = read_checkpoint(self.path)
        if not isinstance(content.get("step"), int):
            raise ValueError(f"{self.path}: not a checkpoint to resume from (it has no step)")
        return content
