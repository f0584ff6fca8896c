"""What a cached item depends on, as a digest: the files it names, the transforms and their parameters, versions.

A function counts by its bytecode, defaults, closure and the globals that it names; a class by its attributes; an object
by its class and by what pickle would keep of it. A module of the user's counts by its file, a library by its version.
Random generators, loggers, open files and threads count by their type. Not followed is what only the file of a module
imports, and what a function reads as it runs.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.util
import io
import logging
import os
import random
import stat
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

import hasten
from hasten.cache.chain import SplitCompose
from hasten.cache.key import digest
from hasten.files import hash_file

_VERSIONED = ("hasten", "monai", "torch", "numpy")
_STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_BY_TYPE = (*_RANDOM, logging.Logger, io.IOBase, threading.Thread, threading.local, weakref.ref)
"""What changes while code uses it, or differs between processes that compute alike."""


def chain_identity(chain: SplitCompose) -> str:
    """Digest of the deterministic transforms: classes, code, parameters, and the versions of what runs them.

    Raises ValueError for a transform with a list or dictionary that holds itself.
    """
    import monai

    versions = [hasten.__version__, monai.__version__, torch.__version__, np.__version__]
    digester = Digester()
    described = []
    for each in chain.fixed_transforms:
        try:
            described.append(digester.digest(each))
        except RecursionError:
            raise ValueError(
                f"{type(each).__name__}: a list, tuple or dictionary that it uses holds itself or is nested too deeply "
                "to tell by it what is kept; make it one that holds only other values"
            ) from None
    return digest([versions, described])


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
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    kind = type(value)
    if is_library(kind.__module__):
        return Digester().digest(value)
    return [_class_identity(kind), Digester(kind).digest(value)]  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _class_identity(kind: type) -> str:
    """Digest of a class of the user's whose objects are in rows: once, as rows are looked at with every access."""
    return Digester().digest(kind)


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


class Digester:
    """Digests values that may share objects and refer to each other in circles. known: objects that were met before."""

    def __init__(self, *known: Any) -> None:
        self.hash = hashlib.sha256()
        self.met = {id(each): (number, each) for number, each in enumerate(known)}
        """Number and object by its id; alive, so that no id is given to another."""

    def digest(self, value: Any) -> str:
        """Digest of a value and of all that was digested before. Raises RecursionError for one nested too deeply."""
        self._add(value)
        return self.hash.hexdigest()

    def _add(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self._write(repr(value))
        elif type(value) in (list, tuple):
            self._all(*value)
        elif isinstance(value, types.ModuleType):
            self._write("module", value.__name__, "" if is_library(value.__name__) else _file_digest(value.__name__))
        elif isinstance(value, type) and is_library(value.__module__):
            version = getattr(sys.modules.get(value.__module__.partition(".")[0]), "__version__", "")
            self._write("class", _qualified(value), str(version))
        elif isinstance(value, _BY_TYPE):
            self._write("kind", _qualified(type(value)))
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._write("array", value.dtype.str, str(value.shape), value.tobytes())
        elif isinstance(value, Set) and is_library(type(value).__module__):
            self._write("set", *sorted(map(self._alone, value)))
        elif isinstance(value, Mapping) and is_library(type(value).__module__):
            keys = {self._alone(key): key for key in value}
            self._write("dict", *sorted(keys))
            self._all(*(value[keys[each]] for each in sorted(keys)))
        elif id(value) in self.met:
            self._write("met", str(self.met[id(value)][0]))
        else:
            self.met[id(value)] = (len(self.met), value)
            self._all(*_parts(value))

    def _alone(self, value: Any) -> str:
        """Digest of a value as if it were the first to be met, as the order of others differs between processes."""
        return Digester(*(each for _, each in self.met.values())).digest(value)

    def _all(self, *values: Any) -> None:
        self._write(str(len(values)))
        for each in values:
            self._add(each)

    def _write(self, *texts: str | bytes) -> None:
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:%b" % (len(data), data))

    def _tensor(self, value: torch.Tensor) -> None:
        self._write("tensor", _qualified(type(value)), str(value.dtype), str(tuple(value.shape)))
        self._add(getattr(value, "__dict__", None) or None)
        if not value.is_meta:
            dense = value.detach().cpu() if value.layout == torch.strided else value.detach().cpu().to_dense()
            plain = dense.as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
            self._write(plain.view(torch.uint8).numpy().tobytes())  # as bytes, because NumPy has no bfloat16


def is_library(module: str | None) -> bool:
    """Whether a module belongs to Python, to an installed package or to Hasten; not to the user."""
    if not isinstance(module, str) or module in ("__main__", "__mp_main__"):
        return False
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(module, sys.modules.get(top)), "__file__", None)
    if top in _VERSIONED or file is None:
        return top in _VERSIONED or top in sys.stdlib_module_names
    # By file also for Python's own modules: a script's profile.py or types.py takes the place of theirs.
    return file.startswith(_STDLIB) or "site-packages" in file or "dist-packages" in file


def _file_digest(module: str) -> str:
    """Digest of a module's file, whether or not it was imported; empty if there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    with suppress(ImportError, ValueError, AttributeError, OSError):
        if file is None:
            spec = importlib.util.find_spec(module)
            file = spec.origin if spec is not None and spec.has_location else None
        return "" if file is None else hash_file(Path(file))
    return ""


def _qualified(value: Any) -> str:
    """Name of a class or function, with that of its module, which is another for a script in a spawned process."""
    module = getattr(value, "__module__", None) or ""
    return f"{'__main__' if module == '__mp_main__' else module}.{getattr(value, '__qualname__', value)}"


def _parts(value: Any) -> list[Any]:
    """What a function, code, a class of the user's, or an object consists of."""
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, types.CodeType):
        arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
        counts = (value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        return [value.co_code, value.co_exceptiontable, value.co_consts, value.co_names, arguments, counts]
    if isinstance(value, types.CellType):
        with suppress(ValueError):
            return [value.cell_contents]
        return ["empty"]
    if isinstance(value, property):
        return ["property", value.fget, value.fset, value.fdel]
    if isinstance(value, type):
        kept = {name: each for name, each in vars(value).items() if callable(each) or not name.startswith("__")}
        return [_qualified(value), value.__bases__, type(value), kept]
    if hasattr(value, "__wrapped__") and is_library(type(value).__module__):  # such as of `functools.cache`
        return [type(value), value.__wrapped__]
    try:
        built_from = copyreg.dispatch_table.get(type(value), lambda each: each.__reduce_ex__(2))(value)
    except Exception:  # whatever an object's class may raise, such as a lock's
        built_from = (getattr(value, "__dict__", None),)
    if isinstance(built_from, str):
        return [type(value), built_from]
    return [type(value), *(list(each) if isinstance(each, Iterator) else each for each in built_from)]


def _function(function: types.FunctionType) -> list[Any]:
    parts = [_qualified(function), function.__code__, function.__closure__]
    parts += [function.__defaults__, function.__kwdefaults__]
    # Of the function itself: `functools.wraps` gives a decorator's the module of what it decorates.
    scope = function.__globals__
    if is_library(scope.get("__name__")):
        return parts
    codes = list(_codes(function.__code__))
    names = sorted({name for code in codes for name in code.co_names if name in scope})
    steps = (step for code in codes for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")
    package = scope.get("__package__") or ""
    modules = sorted({around + step.argval for step in steps for around in ("", f"{package}.")})
    imported = [(name, _file_digest(name)) for name in modules if not is_library(name) and not name.startswith(".")]
    return [*parts, function.__dict__, [(name, scope[name]) for name in names], imported]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)
