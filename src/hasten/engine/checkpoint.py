"""Checkpoints: written whole or not at all, checked before they are believed, readable by plain `torch.load`.

A file is what `torch.save` writes, followed by 8 bytes of mark and 32 bytes of SHA-256 over what came before.
`torch.load` does not mind the end; `read_checkpoint` insists on it.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

_MARK = b"HASTEN01"


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write `content` (tensors, numbers, strings, containers of them) under `path` in one rename.

    Raises OSError (no space, say) with the previous file untouched.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getbuffer()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.write(_MARK + hashlib.sha256(data).digest())
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes a private file; give it the permissions that a plain open would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What was written. No code in the file is run (`weights_only`).

    Raises ValueError that names the file if it is absent, cut off or altered, or holds more than data.
    """
    if not path.is_file():
        raise ValueError(
            f"{path}: no such checkpoint; the run was stopped before it wrote one, or this is not a run directory"
        )
    data = path.read_bytes()
    body, mark, found = data[:-40], data[-40:-32], data[-32:]
    if mark != _MARK or hashlib.sha256(body).digest() != found:
        # The other file is no substitute: last.pt resumes a run, best.pt predicts.
        raise ValueError(
            f"{path}: damaged (its checksum does not hold); restore it from a copy, or train again into another folder"
        )
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{path}: not a checkpoint as Hasten writes it, and nothing in it was run ({reason}); use a file you trust"
        ) from error
    return content
