"""Whose code is whose, and what a function's code depends on."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

from hasten.files import hash_file

_VERSIONED = ("monai", "torch", "numpy")
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple(Path(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib"))
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def is_library(module: str | None) -> bool:
    """Whether a module belongs to Python, to an installed package or to Hasten; not to the user."""
    if not isinstance(module, str) or module in ("__main__", "__mp_main__"):
        return False
    top = module.partition(".")[0]
    if top == "hasten" or top in _VERSIONED:
        return True
    file = getattr(sys.modules.get(module, sys.modules.get(top)), "__file__", None)
    return top in sys.stdlib_module_names if file is None else _is_installed(file)


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    # By file also for Python's own modules: a script's profile.py or types.py takes the place of theirs.
    path = Path(file)
    return not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(each) for each in _STDLIB)


def qualified(value: Any) -> str:
    """Name of a class or function, with that of its module, which is another for a script in a spawned process."""
    module = getattr(value, "__module__", None) or ""
    return f"{'__main__' if module == '__mp_main__' else module}.{getattr(value, '__qualname__', value)}"


def module_parts(module: types.ModuleType) -> list[str]:
    """A module of the user's counts by its file, a library's by its name."""
    name = module.__name__
    return ["module", name] if is_library(name) else ["module", name, _content(getattr(module, "__file__", None))]


def imported_parts(names: set[tuple[int, str, tuple[str, ...]]], package: str | None) -> list[list[str]]:
    """The modules of the user's that code imports when it runs, with the digests of their files.

    names: as `loaded` returns them. They count by their files, whether they have been imported before or not.
    """
    modules = set()
    for level, name, members in names:
        try:
            whole = importlib.util.resolve_name("." * level + name, package) if level else name
        except ImportError:
            continue  # it will fail when it runs
        modules |= {whole, *(f"{whole}.{member}" for member in members)}
    files = {name: _module_file(name) for name in sorted(modules) if not is_library(name)}
    return [[name, _content(file)] for name, file in files.items() if file is not None and not _is_installed(file)]


def _module_file(name: str) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _content(file: str | None) -> str:
    try:
        return "" if file is None else hash_file(Path(file))
    except OSError:
        return ""


@functools.lru_cache(maxsize=4096)
def loaded(code: types.CodeType) -> tuple[set[tuple[str, ...]], set[tuple[int, str, tuple[str, ...]]]]:
    """Globals that a function's code loads, and what it imports; the code in it included.

    A global comes with the attributes that are taken of it at once, such as ("np", "linalg", "norm"); an import as its
    level, its name and the names that are taken from it.
    """
    # Kept, as an item's identity is taken at every access, and its class may have code.
    loads: set[tuple[str, ...]] = set()
    imports: set[tuple[int, str, tuple[str, ...]]] = set()
    path: list[str] = []
    steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for index, step in enumerate(steps):
        if path and step.opname in _ATTRIBUTES:
            path.append(step.argval)
            continue
        if path:
            loads.add(tuple(path))
        path = [step.argval] if step.opname in _LOADS else []
        if step.opname == "IMPORT_NAME":
            level, members = steps[index - 2].argval, steps[index - 1].argval
            imports.add((level, step.argval, members or ()))
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            loads |= loaded(each)[0]
            imports |= loaded(each)[1]
    return loads, imports


def code_parts(code: types.CodeType, constants: list[Any]) -> list[Any]:
    """What code does: not its comments, lines or file. constants: its own, described."""
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    arguments = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    signature = [arguments, code.co_posonlyargcount, code.co_kwonlyargcount, variadic]
    steps = hashlib.sha256(code.co_code + code.co_exceptiontable).hexdigest()
    return [steps, constants, list(code.co_names), signature]


@functools.cache
def source_digest(kind: type) -> str:
    """Digest of the source of a library's class, whose version does not count otherwise.

    Not of Python's or of a package whose version counts: to find the source of every class takes half a second.
    """
    top = kind.__module__.partition(".")[0]
    if top in _VERSIONED or top in sys.stdlib_module_names:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""
