"""A data set's item (arrays, tensors, metadata, nested) as bytes and back, without pickle.

A record is a header and blocks: magic, length and CRC-32 of a JSON header, the header, then each array's bytes at a
multiple of 64. The header holds the item's tree, in which an array stands as [its kind, block, dtype, shape], and each
block's place, length and checksum. Nothing that is read is executed (`hasten.cache.model` reads).
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from hasten.cache.checked import DamagedEntry
from hasten.cache.file import checksum

MAGIC = b"HASTENR1"
_ALIGN = 64
_HEAD = struct.Struct("<8sQI")
_PLAIN = (str, int, float, bool, type(None))


def encode(item: Any) -> list[bytes | memoryview]:
    """Pieces whose concatenation is the record. Raises ValueError naming the key of a value that can't be stored."""
    blocks: list[memoryview] = []
    tree = _tree(item, "item", blocks)
    places, offset = [], 0
    for block in blocks:
        places.append([offset, block.nbytes, checksum(block)])
        offset += -(-block.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({"tree": tree, "blocks": places}).encode()
    start = _HEAD.size + len(header)
    pieces: list[bytes | memoryview] = [
        _HEAD.pack(MAGIC, len(header), checksum(header)),
        header,
        bytes(-start % _ALIGN),
    ]
    for block in blocks:
        pieces += [block, bytes(-block.nbytes % _ALIGN)]
    return pieces


def read_header(data: memoryview, *, verify: bool) -> tuple[Any, list[tuple[int, int]]]:
    """The tree, and place and length of each block; `verify` compares the blocks with their checksums too.

    Raises DamagedEntry for bytes that `encode` did not write.
    """
    try:
        magic, length, crc = _HEAD.unpack(data[: _HEAD.size])
        header = data[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or header.nbytes != length or checksum(header) != crc:
            raise DamagedEntry("its header does not match its checksum")
        content = json.loads(bytes(header))
        start = -(-(_HEAD.size + length) // _ALIGN) * _ALIGN
        places = []
        for offset, size, block_crc in content["blocks"]:
            places.append((start + offset, size))
            block = data[start + offset : start + offset + size]
            if block.nbytes != size or (verify and checksum(block) != block_crc):
                raise DamagedEntry("a block does not match its checksum")
        return content["tree"], places
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedEntry(f"is not what was written ({error})") from error


def _tree(value: Any, name: str, blocks: list[memoryview]) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.str, value.item()]
    if isinstance(value, torch.Tensor):
        return _tensor(value, name, blocks)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise ValueError(f"{name}: an array of Python objects can't be cached; delete it, or make it numbers")
        block = np.ascontiguousarray(value)
        blocks.append(_bytes(block))
        return ["array", len(blocks) - 1, value.dtype.str, list(value.shape)]
    if isinstance(value, Mapping):
        return [
            "dict",
            [[_tree(key, name, blocks), _tree(each, f"{name}[{key!r}]", blocks)] for key, each in value.items()],
        ]
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_tree(each, f"{name}[{number}]", blocks) for number, each in enumerate(value)]]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):  # a subclass, such as numpy's
        return str(value)
    if isinstance(value, torch.Size):
        return ["tuple", list(value)]
    raise ValueError(
        f"{name}: a {type(value).__module__}.{type(value).__qualname__} can't be cached without pickle; delete it from "
        "the item before the first random transform (MONAI: DeleteItemsd), or turn it into numbers or text"
    )


def _tensor(value: torch.Tensor, name: str, blocks: list[memoryview]) -> list[Any]:
    with torch._C.DisableTorchFunctionSubclass():
        plain = value.detach().cpu().contiguous()
        flat = plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.zeros(0, dtype=torch.uint8)
    blocks.append(_bytes(flat.as_subclass(torch.Tensor).numpy()))
    tree = ["tensor", len(blocks) - 1, str(plain.dtype).removeprefix("torch."), list(plain.shape)]
    if hasattr(value, "applied_operations"):
        state = vars(value)
        if state.get("_pending_operations"):
            raise ValueError(f"{name}: has lazy transforms pending; end the deterministic part with ApplyPendingd")
        tree = ["meta", tree, _tree(state, f"{name}.meta", blocks)]
    return tree


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
