"""What a cached item depends on, as a digest: the files it names, the transforms and their parameters, versions."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import os
import stat
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

import hasten
from hasten.cache.chain import SplitCompose
from hasten.cache.key import digest
from hasten.files import hash_file

_DEPTH = 20
_VERSIONED = ("monai", "torch", "numpy")


def chain_identity(chain: SplitCompose) -> str:
    """Digest of the deterministic transforms: classes, source, parameters, and the versions of what runs them."""
    import monai

    versions = [hasten.__version__, monai.__version__, torch.__version__, np.__version__]
    return digest([versions, [describe(each) for each in chain.fixed_transforms]])


def item_identity(item: Any, *, content: bool = False) -> str:
    """Digest of a data set's row. Text and paths that name files count with size and modification time.

    content: with the SHA-256 of their bytes instead of the time, for file systems with unreliable times.
    """
    return digest(_row(item, content))


def _row(value: Any, content: bool) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _row(each, content) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_row(each, content) for each in value]
    if isinstance(value, str | PurePath):
        return _identifier(str(value), content)
    return describe(value)


def _identifier(text: str, content: bool) -> Any:
    """A text that may name a file or folder."""
    # Not by pathlib, which takes ten times as long: this runs at every access of an item.
    try:
        status = os.stat(text)  # noqa: PTH116
    except (OSError, ValueError):  # no file; or no name at all
        return text
    if not stat.S_ISDIR(status.st_mode):
        last = hash_file(Path(text)) if content else status.st_mtime_ns
        return ["file", os.path.abspath(text), status.st_size, last]  # noqa: PTH100
    files = sorted(str(each) for each in Path(text).rglob("*") if each.is_file())
    return ["folder", str(Path(text).absolute()), [_identifier(each, content) for each in files]]


def describe(value: Any, depth: int = 0) -> Any:
    """`value` as JSON values that are equal for what computes alike. Code counts by its bytecode, objects by state."""
    assert depth < _DEPTH, "a transform refers to itself"
    below = functools.partial(describe, depth=depth + 1)
    if value is None or isinstance(value, bool | int | float | str | complex):
        return repr(value)
    if isinstance(value, enum.Enum):
        return [type(value).__qualname__, str(value.value)]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return ["array", array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, torch.Tensor):
        return ["tensor", below(value.detach().cpu().numpy())]
    if isinstance(value, Mapping):
        return ["dict", sorted([repr(key), below(each)] for key, each in value.items())]
    if isinstance(value, set | frozenset):
        return ["set", sorted(str(below(each)) for each in value)]
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [type(value).__qualname__, [below(each) for each in value]]
    if isinstance(value, functools.partial):
        return ["partial", below(value.func), below(value.args), below(value.keywords)]
    if isinstance(value, types.MethodType):
        return ["method", value.__func__.__qualname__, below(value.__self__)]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return ["function", value.__module__, value.__qualname__, _code(value.__code__), below(cells),
                below(value.__defaults__), below(value.__kwdefaults__)]  # fmt: skip
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc | torch.dtype | torch.device | np.dtype):
        return ["name", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"]
    kind = [f"{type(value).__module__}.{type(value).__qualname__}", _source(type(value))]  # type: ignore[arg-type]
    state = value.__getstate__()
    return [*kind, below(state if state else _built_from(value))]


def _built_from(value: Any) -> Any:
    """What an object without attributes is built from, such as a random state; None if it does not support pickling."""
    try:
        parts = value.__reduce_ex__(2)
    except TypeError:
        return None  # for example a lock
    return (
        None if isinstance(parts, str) else [list(each) if isinstance(each, Iterator) else each for each in parts[1:]]
    )


def _code(code: types.CodeType) -> list[Any]:
    constants = [_code(each) if isinstance(each, types.CodeType) else describe(each) for each in code.co_consts]
    return [hashlib.sha256(code.co_code).hexdigest(), constants, list(code.co_names)]


@functools.cache
def _source(kind: type) -> str:
    """Digest of a class's source, so that an edited transform of the user's own is another transform.

    Not of a library's, whose version counts already: to find the source of every class takes half a second.
    """
    if kind.__module__.partition(".")[0] in _VERSIONED:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""
