"""A data set's item (arrays, tensors, metadata, nested) as bytes and back, without pickle.

A record is a header and blocks: magic, length and CRC-32 of a JSON header, the header, then each array's bytes at a
multiple of 64. The header holds the item's tree, in which an array stands as [its kind, block, dtype, shape], and each
block's place, length and checksum. Reading gives views into the bytes; nothing that is read is executed.
"""

from __future__ import annotations

import enum
import json
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Pieces whose concatenation is the record. Raises ValueError naming the key of what can't be kept."""
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


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose header was read: any number of items can be made from it."""

    tree: Any
    start: int
    """Where the blocks begin."""
    blocks: list[list[int]]
    """Offset from `start`, bytes and CRC-32 of each."""

    def item(self, data: Any) -> Any:
        """The item, whose arrays are views into `data`, the record's bytes: writable where those are."""
        view = memoryview(data)
        return _item(self.tree, [view[self.start + offset :][:size] for offset, size, _ in self.blocks])


def open_record(data: Any, *, verify: bool) -> Record:
    """Read the header; `verify` compares every block with its checksum too.

    Raises DamagedEntry for bytes that `encode` did not write.
    """
    view = memoryview(data).cast("B")
    try:
        magic, length, crc = _HEAD.unpack(view[: _HEAD.size])
        header = view[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or header.nbytes != length or checksum(header) != crc:
            raise DamagedEntry("its header does not match its checksum")
        found = json.loads(bytes(header))
        record = Record(found["tree"], -(-(_HEAD.size + length) // _ALIGN) * _ALIGN, found["blocks"])
        for offset, size, block_crc in record.blocks:
            block = view[record.start + offset :][:size]
            if block.nbytes != size or (verify and checksum(block) != block_crc):
                raise DamagedEntry("a block does not match its checksum")
        return record
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedEntry(f"is not what was written ({error})") from error


def decode(data: Any, *, verify: bool) -> Any:
    """The item of a record, as views into `data`. Raises DamagedEntry."""
    record = open_record(data, verify=verify)
    try:
        return record.item(data)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
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
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _item(tree: Any, blocks: list[memoryview]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    match kind:
        case "scalar":
            return np.dtype(rest[0]).type(rest[1])
        case "array":
            block, dtype = blocks[rest[0]], np.dtype(rest[1])
            return np.frombuffer(block, dtype).reshape(rest[2]) if block.nbytes else np.empty(rest[2], dtype)
        case "tensor":
            return _as_tensor(blocks[rest[0]], getattr(torch, rest[1]), rest[2])
        case "meta":
            return _as_meta(_item(rest[0], blocks), _item(rest[1], blocks))
        case "dict":
            return {_item(key, blocks): _item(value, blocks) for key, value in rest[0]}
        case "tuple":
            return tuple(_item(each, blocks) for each in rest[0])
        case "list":
            return [_item(each, blocks) for each in rest[0]]
    raise KeyError(kind)


def _as_tensor(block: memoryview, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if not block.nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(block, dtype=dtype).reshape(shape)


def _as_meta(data: torch.Tensor, state: dict[str, Any]) -> Any:
    # Not by its constructor, which converts and checks for ten times the time that reading takes.
    from monai.data import MetaTensor

    found = data.as_subclass(MetaTensor)
    found.__dict__.update(state)
    return found
