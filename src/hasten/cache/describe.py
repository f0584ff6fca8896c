"""A value as JSON values that are equal for what computes alike, in any process."""

from __future__ import annotations

import argparse
import copyreg
import enum
import functools
import hashlib
import re
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch

from hasten.cache.code import code_parts, imported_parts, is_library, loaded, module_parts, qualified, source_digest

_SCALARS = (bool, int, float, str, complex)
_BUILTIN = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, np.ufunc, np.dtype, torch.dtype, torch.device,
)  # fmt: skip
_VOLATILE = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, threading.Thread)
"""What differs between processes that compute alike."""
_DATA = (
    type(None), *_SCALARS, *_BUILTIN, bytes, bytearray, Mapping, Sequence, set, frozenset, enum.Enum, type,
    functools.partial, functools.cached_property, types.FunctionType, types.MethodType, np.ndarray, np.generic,
    torch.Tensor, torch.nn.Module, types.SimpleNamespace, argparse.Namespace, re.Pattern,
)  # fmt: skip
"""Types of libraries whose values count in full where code refers to them."""


class Seen(NamedTuple):
    """The functions, classes and objects that were met: their numbers by id, and they themselves by number."""

    numbers: dict[int, int]
    values: list[Any]
    """Keeps them alive, so that no id is given to another object."""


def describe(value: Any, seen: Seen | None = None) -> Any:
    """`value` as JSON values that are equal for what computes alike. Code counts by its bytecode, objects by state.

    Functions, classes and objects count as ["seen", number], and each is described once, in the order of the numbers:
    they may refer to each other in circles. seen: of the values that were described before this one.
    Raises RecursionError for a container that holds itself.
    """
    if value is None or type(value) in _SCALARS:
        return repr(value)
    seen = Seen({}, []) if seen is None else seen
    start = len(seen.values)
    referred: list[Any] = []
    described = _value(value, seen)
    while start + len(referred) < len(seen.values):
        referred.append(_referred(seen.values[start + len(referred)], seen))
    return [described, referred] if referred else described


def _value(value: Any, seen: Seen) -> Any:
    if value is None or type(value) in _SCALARS:
        return repr(value)
    try:
        return _content(value, seen)
    except (RecursionError, MemoryError):
        raise
    except Exception:  # whatever a library's class may raise where it is read, such as a proxy of nothing
        return _kind(value)


def _content(value: Any, seen: Seen) -> Any:
    below = functools.partial(_value, seen=seen)
    if isinstance(value, enum.Enum):
        return ["enum", below(type(value)), below(value.value)]
    if isinstance(value, torch.Tensor):
        return ["tensor", below(type(value)), *_tensor(value, seen)]
    if isinstance(value, types.MethodType):
        return ["method", below(value.__func__), _global(value.__self__, seen)]
    if isinstance(value, type) and is_library(value.__module__):
        return ["class", qualified(value), source_digest(value)]
    if isinstance(value, types.ModuleType):
        return module_parts(value)
    if isinstance(value, types.CodeType):
        return ["code", _code(value)]
    if isinstance(value, _BUILTIN):
        bound = getattr(value, "__self__", None)
        return ["name", qualified(value), None if isinstance(bound, types.ModuleType) else _global(bound, seen)]
    if isinstance(value, _VOLATILE):
        return _kind(value)
    if is_library(type(value).__module__):
        plain = _plain(value, seen)
        if plain is not None:
            return plain
    if id(value) not in seen.numbers:
        seen.numbers[id(value)] = len(seen.values)
        seen.values.append(value)
    return ["seen", seen.numbers[id(value)]]


def _plain(value: Any, seen: Seen) -> Any:
    """Numbers, text, arrays and containers, not of a class of the user's; None for what is none of them."""
    below = functools.partial(_value, seen=seen)
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, bytes | bytearray):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    if isinstance(value, PurePath):
        return ["path", str(value)]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:  # its bytes are addresses
            return ["array", array.dtype.str, list(array.shape), below(array.tolist())]
        return ["array", array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, Mapping):
        # Sorted before any is described: the order in which objects are met gives them their numbers.
        return ["dict", [[below(key), below(value[key])] for key in sorted(value, key=_order)]]
    if isinstance(value, set | frozenset):
        # Each as if it were the first to be met, as their order differs between processes.
        each_alone = [describe(each, Seen(dict(seen.numbers), list(seen.values))) for each in value]
        return ["set", sorted(str(each) for each in each_alone)]
    if isinstance(value, Sequence):
        return [type(value).__qualname__, [below(each) for each in value]]
    if isinstance(value, functools.partial):
        return ["partial", below(value.func), below(value.args), below(value.keywords)]
    return None


def _order(key: Any) -> str:
    """Sort key of a dictionary's key; keys whose texts are addresses keep their order."""
    text = repr(key) if isinstance(key, (*_SCALARS, tuple)) else ""
    return qualified(type(key)) if not text or " at 0x" in text else text


def _tensor(value: torch.Tensor, seen: Seen) -> list[Any]:
    kind = [str(value.dtype), list(value.shape), _value(getattr(value, "__dict__", None) or None, seen)]
    if value.is_meta:
        return kind
    with torch.no_grad():
        plain = value.detach().cpu()
        plain = plain if plain.layout == torch.strided else plain.to_dense()
        plain = plain.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        # As bytes, because NumPy has no bfloat16.
        return [*kind, _value(plain.contiguous().reshape(-1).view(torch.uint8).numpy(), seen)]


def _global(value: Any, seen: Seen) -> Any:
    """What code refers to. A library's objects that are no data, such as a lock or a file, count by their types."""
    if isinstance(value, types.ModuleType):
        return module_parts(value)
    is_wrapper = "__wrapped__" in _attributes(value)  # such as of `functools.cache`
    if is_wrapper or not is_library(type(value).__module__) or isinstance(value, _DATA) or _is_transform(value):
        return _value(value, seen)
    return _kind(value)


def _is_transform(value: Any) -> bool:
    from monai.transforms import Transform

    return isinstance(value, Transform)


def _kind(value: Any) -> list[str]:
    return ["kind", qualified(type(value))]


def _attributes(value: Any) -> dict[str, Any]:
    try:
        attributes = vars(value)
    except Exception:  # it has none; or is a proxy of nothing
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _referred(value: Any, seen: Seen) -> Any:
    """A function, a class of the user's, or an object."""
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    wrapped = _attributes(value).get("__wrapped__")
    if isinstance(wrapped, types.FunctionType) and is_library(type(value).__module__):
        return ["wraps", *_kind(value), _value(wrapped, seen)]
    return ["object", _value(type(value), seen), _value(_built_from(value), seen)]


def _built_from(value: Any) -> Any:
    """What pickle would build an object from; the attributes of one that can't be pickled, such as a lock."""
    try:
        return _reduced(value)
    except Exception:  # whatever an object's class may raise
        return _attributes(value)


def _reduced(value: Any) -> str | list[Any]:
    reduce = copyreg.dispatch_table.get(type(value))
    parts = value.__reduce_ex__(2) if reduce is None else reduce(value)
    return parts if isinstance(parts, str) else [list(each) if isinstance(each, Iterator) else each for each in parts]


def _function(function: types.FunctionType, seen: Seen) -> list[Any]:
    below = functools.partial(_value, seen=seen)
    cells = [_cell(each, seen) for each in function.__closure__ or ()]
    values = [cells, below(function.__defaults__), below(function.__kwdefaults__)]
    described = ["function", qualified(function), _code(function.__code__), values]
    # Of the function itself: `functools.wraps` gives a decorator's the module of what it decorates.
    scope = function.__globals__
    if is_library(scope.get("__name__")):
        return described
    loads, imports = loaded(function.__code__)
    globals_by_name = dict(_resolved(path, scope) for path in loads if path[0] in scope)
    of_globals = [[name, _global(globals_by_name[name], seen)] for name in sorted(globals_by_name)]
    return [*described, below(function.__dict__), of_globals, imported_parts(imports, scope.get("__package__"))]


@functools.lru_cache(maxsize=4096)
def _code(code: types.CodeType) -> list[Any]:
    return code_parts(code, [describe(each) for each in code.co_consts])


def _cell(cell: types.CellType, seen: Seen) -> Any:
    try:
        content = cell.cell_contents
    except ValueError:
        return "empty"
    return _value(content, seen)


def _resolved(path: tuple[str, ...], scope: Mapping[str, Any]) -> tuple[str, Any]:
    """A global's name and value; of a module of the user's, those of what is taken from it."""
    value, used = scope[path[0]], 1
    while used < len(path) and isinstance(value, types.ModuleType) and not is_library(value.__name__):
        try:
            value = getattr(value, path[used])
        except Exception:  # a module may have a `__getattr__` that raises anything
            break
        used += 1
    return ".".join(path[:used]), value


def _class(kind: type, seen: Seen) -> list[Any]:
    bases = [_value(each, seen) for each in (*kind.__bases__, type(kind))]
    attributes = vars(kind)
    # What Python or a decorator keeps in a class, such as its module, says nothing about what it computes.
    names = [name for name in sorted(attributes) if not _is_dunder(name) or _is_code(attributes[name])]
    return ["class", qualified(kind), bases, [[name, _attribute(attributes[name], seen)] for name in names]]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def _attribute(value: Any, seen: Seen) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, _global(value.__func__, seen)]
    if isinstance(value, property):
        return ["property", [_global(each, seen) for each in (value.fget, value.fset, value.fdel)]]
    return _global(value, seen)
