"""A digest of values and of the code that they run: equal for what computes alike, in any process."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.util
import io
import logging
import random
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from pickle import Pickler
from typing import Any

import numpy as np
import torch

from hasten.files import hash_file

_VERSIONED = ("hasten", "monai", "torch", "numpy")
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple(Path(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib"))
_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple)
_NAMED = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType)
_NUMERIC = (types.ClassMethodDescriptorType, np.ufunc, np.dtype, torch.dtype, torch.device)
_VOLATILE = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, threading.Thread)
"""What differs between processes that compute alike."""
_CHANGING = (logging.Logger, random.Random, np.random.Generator, np.random.RandomState, torch.Generator, io.IOBase)
"""What changes while code uses it, and counts by its type where code refers to it by a global name."""


class Digester(Pickler):
    """Digests values that may share objects and refer to each other in circles.

    A function counts by its bytecode, defaults, closure and the globals that it names; a class by its attributes; an
    object by its class and by what pickle would keep of it; a library's class by the file that defines it. A module of
    the user's counts by its file and by those of its values that the code names. Not followed is what only the file of
    such a module imports; and what is read when the code runs, from a file or by a name put together, does not count.
    known: what is told apart elsewhere.
    """

    def __init__(self, known: Sequence[Any] = ()) -> None:
        self.stream = io.BytesIO()
        super().__init__(self.stream, protocol=4)
        self.fast = True  # by value: whether two equal texts are one object differs between processes
        self.met = list(known)
        """Functions, classes and objects, alive so that no id is given to another."""
        self.numbers = {id(each): number for number, each in enumerate(self.met)}

    def digest(self, value: Any) -> str:
        """Digest of a value and of all that was digested before. Raises RecursionError where a container holds itself.

        Functions, classes and objects are numbered, and described one after another once the value is.
        """
        described = len(self.met)
        self._dump(value)
        while described < len(self.met):
            self._dump(_parts(self.met[described]))
            described += 1
        return hashlib.sha256(self.stream.getvalue()).hexdigest()

    def _dump(self, value: Any) -> None:
        try:
            self.dump(value)
        except ValueError as error:  # of pickle, about a list within itself
            raise RecursionError(str(error)) from None

    def persistent_id(self, value: Any) -> Any:
        """What stands for a value in the stream; None for plain ones, which pickle writes."""
        if type(value) in _PLAIN:
            return None
        try:
            return self._stand_in(value)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # whatever a library's class may raise where it is read, such as a proxy of nothing
            return _kind(value)

    def _stand_in(self, value: Any) -> Any:
        if isinstance(value, types.CodeType):
            arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
            counts = (value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
            return [value.co_code, value.co_exceptiontable, value.co_consts, value.co_names, arguments, counts]
        if isinstance(value, type) and is_library(value.__module__):
            return ["class", _qualified(value), _version(value.__module__)]
        if isinstance(value, types.ModuleType):
            return _used(value, [])
        if isinstance(value, (*_NAMED, *_NUMERIC)):
            owner = getattr(value, "__self__", None)
            return ["name", _qualified(value), None if isinstance(owner, types.ModuleType) else _referred(owner)]
        if isinstance(value, _VOLATILE):
            return _kind(value)
        if isinstance(value, torch.Tensor):
            return ["tensor", type(value), *_tensor(value)]
        if is_library(type(value).__module__):
            if isinstance(value, np.ndarray):
                data = value.tolist() if value.dtype.hasobject else hashlib.sha256(value.tobytes()).digest()
                return ["array", value.dtype.str, list(value.shape), data]
            if isinstance(value, Mapping):
                return ["dict", [[key, value[key]] for key in sorted(value, key=_order)]]
            if isinstance(value, Set):
                # Each as if it were the first to be met, as their order differs between processes.
                return ["set", sorted(Digester(self.met).digest(each) for each in value)]
        number = self.numbers.setdefault(id(value), len(self.met))
        if number == len(self.met):
            self.met.append(value)
        return ["met", number]


def is_library(module: str | None) -> bool:
    """Whether a module belongs to Python, to an installed package or to Hasten; not to the user."""
    if not isinstance(module, str) or module in ("__main__", "__mp_main__"):
        return False
    top = module.partition(".")[0]
    if top in _VERSIONED:
        return True
    file = getattr(sys.modules.get(module, sys.modules.get(top)), "__file__", None)
    return top in sys.stdlib_module_names if file is None else _is_installed(file)


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    # By file also for Python's own modules: a script's profile.py or types.py takes the place of theirs.
    path = Path(file)
    return not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(each) for each in _STDLIB)


@functools.cache
def _version(library: str) -> str:
    """Digest of the file of a library's module, unless its version counts elsewhere."""
    top = library.partition(".")[0]
    return "" if top in _VERSIONED or top in sys.stdlib_module_names else _file_digest(_file_of(library))


def _file_of(module: str) -> str | None:
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _file_digest(file: str | None) -> str:
    try:
        return "" if file is None else hash_file(Path(file))
    except OSError:
        return ""


def _qualified(value: Any) -> str:
    """Name of a class or function, with that of its module, which is another for a script in a spawned process."""
    module = getattr(value, "__module__", None) or ""
    return f"{'__main__' if module == '__mp_main__' else module}.{getattr(value, '__qualname__', value)}"


def _kind(value: Any) -> list[str]:
    return ["kind", _qualified(type(value))]


def _order(value: Any) -> str:
    """Sort key of a dictionary's key; those whose texts are addresses keep their order."""
    text = repr(value) if isinstance(value, (*_PLAIN, complex)) else ""
    return _qualified(type(value)) if not text or " at 0x" in text else text


def _tensor(value: torch.Tensor) -> list[Any]:
    kind = [str(value.dtype), list(value.shape), getattr(value, "__dict__", None) or None]
    if value.is_meta:
        return kind
    with torch.no_grad():
        plain = value.detach().cpu()
        plain = plain if plain.layout == torch.strided else plain.to_dense()
        plain = plain.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        # As bytes, because NumPy has no bfloat16.
        return [*kind, plain.contiguous().reshape(-1).view(torch.uint8).numpy()]


def _referred(value: Any) -> Any:
    """A value that code refers to by a global name, or by what it is bound to."""
    return _kind(value) if isinstance(value, (*_CHANGING, threading.local)) else value


def _attributes(value: Any) -> dict[str, Any]:
    try:
        attributes = vars(value)
    except Exception:  # it has none; or is a proxy of nothing
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _parts(value: Any) -> list[Any]:
    """What a function, a method, a class of the user's, or an object consists of."""
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, types.MethodType):
        return ["method", value.__func__, _referred(value.__self__)]
    if isinstance(value, type):
        return ["class", _qualified(value), value.__bases__, type(value), _members(value)]
    if "__wrapped__" in _attributes(value) and is_library(type(value).__module__):  # such as of `functools.cache`
        return ["wraps", *_kind(value), value.__wrapped__]
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        built_from = value.__reduce_ex__(2) if reduce is None else reduce(value)
    except Exception:  # whatever an object's class may raise, such as a lock's
        built_from = [_attributes(value)]
    if not isinstance(built_from, str):
        built_from = [list(each) if isinstance(each, Iterator) else each for each in built_from]
    return ["object", type(value), built_from]


def _members(kind: type) -> list[Any]:
    """Attributes of a class but those that Python or a decorator keeps in it, such as its module."""
    members = []
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, staticmethod | classmethod):
            members.append([name, type(value).__name__, _referred(value.__func__)])
        elif isinstance(value, property):
            members.append([name, "property", value.fget, value.fset, value.fdel])
        elif callable(value) or not (name.startswith("__") and name.endswith("__")):
            members.append([name, _referred(value)])
    return members


def _function(function: types.FunctionType) -> list[Any]:
    cells = [_cell(each) for each in function.__closure__ or ()]
    parts = [_qualified(function), function.__code__, cells, function.__defaults__, function.__kwdefaults__]
    # Of the function itself: `functools.wraps` gives a decorator's the module of what it decorates.
    scope = function.__globals__
    if is_library(scope.get("__name__")):
        return parts
    codes = list(_codes(function.__code__))
    names = sorted({name for code in codes for name in code.co_names})
    imports = any(dis.opmap["IMPORT_NAME"] in code.co_code[::2] for code in codes)
    modules = _modules(names, scope.get("__package__") or "") if imports else []
    return [*parts, function.__dict__, [[name, _used(scope[name], names)] for name in names if name in scope], modules]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _cell(cell: types.CellType) -> Any:
    try:
        return [cell.cell_contents]
    except ValueError:
        return "empty"


def _used(value: Any, names: list[str], within: tuple[types.ModuleType, ...] = ()) -> Any:
    """A global that code names. A library's module counts by its name; one of the user's by its file and its values."""
    if not isinstance(value, types.ModuleType):
        return _referred(value)
    if is_library(value.__name__) or value in within:
        return ["module", value.__name__]
    scope = vars(value)
    values = [[name, _used(scope[name], names, (*within, value))] for name in names if name in scope]
    return ["module", value.__name__, _file_digest(getattr(value, "__file__", None)), values]


def _modules(names: list[str], package: str) -> list[Any]:
    """The user's modules of these names, absolute or in a package around the code, with the digests of their files.

    They count before code that imports them has run.
    """
    levels = package.split(".")
    around = ["", *(".".join(levels[:end]) + "." for end in range(1, len(levels) + 1) if package)]
    files = {whole: _file_of(whole) for name in names if name for each in around if (whole := each + name)}
    return [
        [name, _file_digest(file)]
        for name, file in files.items()
        if file is not None and not is_library(name) and not _is_installed(file)
    ]
