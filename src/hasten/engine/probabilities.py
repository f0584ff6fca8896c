"""Files of predicted probabilities: filled in any order while a network works, then compressed slab by slab."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from hasten.files import replacing

_SLAB = 1 << 24
"""Bytes that are compressed at once."""


def scratch(out: Path, shape: Sequence[int]) -> np.ndarray:
    """Float16 zeros (K, D, H, W) in a file in `out` that has no name and ends with the array.

    Raises ValueError where the disk has no room for it.
    """
    size = 2 * prod(shape)
    try:
        with tempfile.TemporaryFile(dir=out) as file:
            # Space that is reserved can't run out later, when a write through the mapping would kill the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.float16, "r+", shape=tuple(shape))
    except OSError as error:
        raise ValueError(
            f"{out}: has no room for {size / 1e9:.2g} GB of probabilities ({error.strerror}); free some space, choose "
            "another --out or leave out --probabilities"
        ) from None


def write_probabilities(target: Path, array: np.ndarray, classes: Sequence[str]) -> None:
    """Write a compressed .npz with `probabilities` (K, D, H, W) and the names of its `classes` (K,); atomically.

    In memory is a slab of the array at a time. Raises OSError.
    """
    with (
        replacing(target, target.with_name(f".partial-{target.name}")) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        with archive.open("probabilities.npy", "w", force_zip64=True) as member:
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(member, header)
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, len(flat), _SLAB):
                member.write(np.ascontiguousarray(flat[start : start + _SLAB]).data)
        with archive.open("classes.npy", "w") as member:
            np.lib.format.write_array(member, np.array(classes), allow_pickle=False)
