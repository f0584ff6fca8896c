"""A data set's item (arrays, tensors, metadata, nested) as bytes and back, without pickle, also in shared memory.

A record is a head and blocks: magic, length and CRC-32 of JSON, the JSON, then the bytes of each array at a multiple of
64. The JSON is the item's tree; what JSON has no value for is an object with its kind and parts, of an array the place,
size and checksum of its block, dtype and shape. Nothing that is read is executed.
"""

from __future__ import annotations

import enum
import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from hasten.cache.file import checksum
from hasten.cache.publish import DamagedEntry
from hasten.system import map_privately

MAGIC = b"HASTENR2"
_ALIGN = 64
_KIND = ""
"""Key of an object that stands for something else; a dictionary that has it is written as pairs."""
_HEAD = struct.Struct("<8sQI")
_MAPPED_BYTES = 1 << 24
"""Below this, reading a record into memory that is used again costs less than mapping its pages anew."""
Json = dict[str, Any]
_PLAIN = (str, int, float, bool, type(None))


def encode(item: Any) -> list[bytes | memoryview]:
    """Pieces whose concatenation is the record. Raises ValueError naming the key of a value that can't be stored."""
    blocks: list[memoryview] = []
    head = json.dumps(_tree(item, "item", blocks)).encode()
    pieces: list[bytes | memoryview] = [
        _HEAD.pack(MAGIC, len(head), checksum(head)),
        head,
        bytes(-(_HEAD.size + len(head)) % _ALIGN),
    ]
    for block in blocks:
        pieces += [block, bytes(-block.nbytes % _ALIGN)]
    return pieces


def decode(data: Any, *, verify: bool) -> Any:
    """The item of a record, whose arrays are views into `data`, a writable buffer.

    Raises DamagedEntry for bytes that `encode` did not write; `verify` compares every block with its checksum too.
    """
    view = memoryview(data).cast("B")
    try:
        magic, length, crc = _HEAD.unpack(view[: _HEAD.size])
        head = view[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or head.nbytes != length or checksum(head) != crc:
            raise DamagedEntry("its head does not match its checksum")
        start = -(-(_HEAD.size + length) // _ALIGN) * _ALIGN
        return json.loads(bytes(head), object_hook=partial(_built, blocks=view[start:], verify=verify))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedEntry(f"is not what was written ({error})") from error


def _built(found: dict[str, Any], blocks: memoryview, verify: bool) -> Any:
    """What an object of the JSON stands for. blocks: the bytes behind the head."""
    kind = found.get(_KIND)
    if kind is None:
        return found
    parts = found["parts"]
    match kind:
        case "dict":
            return dict(parts)
        case "tuple":
            return tuple(parts)
        case "scalar":
            return np.dtype(parts[0]).type(parts[1])
        case "meta":
            return _meta_tensor(*parts)
    start, size, crc, dtype, shape = parts
    block = blocks[start : start + size]
    if block.nbytes != size or (verify and checksum(block) != crc):
        raise DamagedEntry("a block does not match its checksum")
    if kind == "array":
        return np.frombuffer(block, dtype).reshape(shape)
    assert kind == "tensor"
    torch_dtype = getattr(torch, dtype)
    if not size:  # torch takes no empty buffer
        return torch.empty(shape, dtype=torch_dtype)
    return torch.frombuffer(block, dtype=torch_dtype).view(shape)


def _tree(value: Any, name: str, blocks: list[memoryview]) -> Any:
    """The item as JSON values. `blocks` gets the arrays' bytes; name: of the value, in errors."""
    if isinstance(value, enum.Enum):
        value = value.value
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return _object("scalar", value.dtype.str, value.item())
    if isinstance(value, torch.Tensor):
        return _tensor(value, name, blocks)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise ValueError(f"{name}: an array of Python objects can't be cached; delete it, or make it numbers")
        return _stored("array", value, value.dtype.str, value.shape, blocks)
    if isinstance(value, Mapping):
        pairs = [(_tree(key, name, blocks), _tree(each, f"{name}[{key!r}]", blocks)) for key, each in value.items()]
        plain = all(type(key) is str and key != _KIND for key, _ in pairs)
        return dict(pairs) if plain else _object("dict", *pairs)
    if isinstance(value, tuple | list):
        parts = [_tree(each, f"{name}[{number}]", blocks) for number, each in enumerate(value)]
        return _object("tuple", *parts) if isinstance(value, tuple) else parts
    if isinstance(value, PurePath | str):  # a path, or a subclass of text, such as numpy's
        return str(value)
    raise ValueError(
        f"{name}: a {type(value).__module__}.{type(value).__qualname__} can't be cached without pickle; delete it from "
        "the item before the first random transform (MONAI: DeleteItemsd), or turn it into numbers or text"
    )


def _tensor(value: torch.Tensor, name: str, blocks: list[memoryview]) -> Json:
    with torch._C.DisableTorchFunctionSubclass():
        plain = value.detach().cpu().contiguous()
        flat = plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.zeros(0, dtype=torch.uint8)
    array = flat.as_subclass(torch.Tensor).numpy()
    stored = _stored("tensor", array, str(plain.dtype).removeprefix("torch."), plain.shape, blocks)
    if not hasattr(value, "applied_operations"):
        return stored
    state = vars(value)
    if state.get("_pending_operations"):
        raise ValueError(f"{name}: has lazy transforms pending; end the deterministic part with ApplyPendingd")
    return _object("meta", stored, _tree(state, f"{name}.meta", blocks))


def _stored(kind: str, array: np.ndarray, dtype: str, shape: tuple[int, ...], blocks: list[memoryview]) -> Json:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    start = sum(-(-block.nbytes // _ALIGN) * _ALIGN for block in blocks)
    blocks.append(data)
    return _object(kind, start, data.nbytes, checksum(data), dtype, list(shape))


def _object(kind: str, *parts: Any) -> Json:
    return {_KIND: kind, "parts": parts}


def _meta_tensor(tensor: torch.Tensor, state: dict[str, Any]) -> Any:
    # Not by its constructor, whose conversions and checks take ten times as long as reading.
    from monai.data import MetaTensor

    result = tensor.as_subclass(MetaTensor)
    result.__dict__.update(state)
    return result


def read_record(handle: int, size: int, start: int = 0) -> Any:
    """A record of an open file, to read and to change for oneself.

    A large one is mapped, so that only the pages that are used are read, and copied at their first change. start: a
    multiple of the allocation granularity. Raises OSError.
    """
    if size >= _MAPPED_BYTES or not hasattr(os, "preadv"):
        return map_privately(handle, size, start)
    data = np.empty(size, np.uint8).data
    done = 0
    while done < size and (count := os.preadv(handle, [data[done:]], start + done)):
        done += count
    return data[:done]


class SharedItems:
    """A nameless file in memory that holds records one after another.

    Worker processes, forked or spawned, read the same memory, so there is one copy however many they are. It is freed
    when no process and no item refers to it. Not on Windows, which passes no open file on to a worker.
    """

    def __init__(self) -> None:
        self.handle = _nameless()
        self.end = 0
        self.lock = threading.Lock()

    def put(self, item: Any) -> SharedItem:
        """Store an item. Raises ValueError for one that `encode` refuses; OSError where memory is full."""
        pieces = encode(item)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        with self.lock:
            start = self.end
            self.end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            os.ftruncate(self.handle, self.end)
            with os.fdopen(self.handle, "r+b", closefd=False) as file:
                file.seek(start)
                file.writelines(pieces)
        return SharedItem(self, start, size)

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.reduction import DupFd

        return {"handle": DupFd(self.handle), "end": self.end}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.handle, self.end, self.lock = state["handle"].detach(), state["end"], threading.Lock()

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", -1), -1
        if handle >= 0:
            os.close(handle)


class SharedItem:
    """The place of an item in a store."""

    def __init__(self, store: SharedItems, start: int, size: int) -> None:
        self.store, self.start, self.size = store, start, size

    def item(self) -> Any:
        """The item, which may be changed: no other process or later access sees the changes."""
        return decode(read_record(self.store.handle, self.size, self.start), verify=False)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hasten-cache")
    with tempfile.TemporaryFile() as file:  # not on Linux
        return os.dup(file.fileno())
