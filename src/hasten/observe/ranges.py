"""Named ranges for profiles by torch.profiler and Nsight Systems.

They are on only while torch's profiler records, or in a process that Nsight Systems profiles (it sets an environment
variable there; HASTEN_NVTX=1 does the same). Where they are off, they only check a flag of torch.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

LOADING, FORWARD, BACKWARD, OPTIMIZER = "data loading", "forward", "backward", "optimizer"
VALIDATION, CHECKPOINT = "validation", "checkpoint"
PHASES = (LOADING, FORWARD, BACKWARD, OPTIMIZER, VALIDATION, CHECKPOINT)
"""Names of a training's ranges, in the order of a step."""

_NSIGHT = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Set by `nsys` for the process that it profiles: the second from its start, the first once it records."""
_METHODS = ("forward", "__call__", "__next__", "__getitem__")
"""Methods that are looked up in an object of a class outside torch, as MONAI's `Range` does."""

What = TypeVar("What")


def nvtx_wanted(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is to mark its ranges for Nsight."""
    return environment.get("HASTEN_NVTX", "") == "1" or any(environment.get(name) for name in _NSIGHT)


NVTX = nvtx_wanted(os.environ)
"""A process is profiled from its start or not at all, so the environment is read once."""


def ranges_on() -> bool:
    """Whether a profiler is active."""
    return NVTX or _profiling()


def _profiling() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    return profiler is not None and profiler._is_profiler_enabled


class Range:
    """A range by a name: a context, a decorator of functions and methods, or a wrapper of objects, which it keeps.

    `with Range("crop"): ...`; `@Range("crop")` above a function or a method; `Range("crop")(transform)` for a
    transform, a loss, a module, an optimizer or a data set: the object itself comes back, of its own class to all who
    ask, and can be copied as before, but not pickled. Without a name it is that of the object's class or of the
    function. Arguments beyond the name, MONAI's:

    methods: those that are marked; None finds them by the kind of object: forward of a module, step of an optimizer,
    items of a data set, else what there is of forward, __call__, __next__ and __getitem__.
    append_method_name: to the name, as `name.method`; None does it where several are marked. Raises ValueError for an
    object that has none of these methods. As a context, one `Range` is for one thread.
    """

    __slots__ = ("_open", "append_method_name", "methods", "name")

    def __init__(
        self,
        name: str | None = None,
        methods: str | Iterable[str] | None = None,
        append_method_name: bool | None = None,
    ) -> None:
        self.name, self.methods, self.append_method_name = name, methods, append_method_name
        self._open: list[Any] | None = None

    def __enter__(self) -> Range:
        if NVTX or _profiling():
            if self._open is None:
                self._open = []
            self._open.append(_begin(self.name or "context"))
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            _end(self._open.pop())

    def __call__(self, what: What) -> What:
        target: Any = what
        if inspect.isroutine(what) or isinstance(what, functools.partial):
            return _ranged(target, self.name or _name_of(what))
        if isinstance(what, type):
            raise ValueError(f"Range: {what.__name__} is a class; give an object of it, or decorate its methods")
        return _marked(target, _marked_names(self, target))


def _marked_names(how: Range, what: Any) -> dict[str, str]:
    """The names of the ranges by the method that each is for. Raises ValueError where there is none to mark."""
    named = (how.methods,) if isinstance(how.methods, str) else how.methods
    methods = _methods_of(what) if named is None else tuple(named)
    missing = [method for method in methods if not hasattr(what, method)]
    if missing:
        raise ValueError(f"Range: a {type(what).__name__} has no {missing[0]}; name methods that it has")
    name = how.name or _name_of(what)
    append = len(methods) > 1 if how.append_method_name is None else how.append_method_name
    return {method: f"{name}.{method}" if append else name for method in methods}


def _begin(name: str) -> tuple[Any, Any]:
    """Begin a range; returns torch's record and the NVTX module, which `_end` closes."""
    record = nvtx = None
    if _profiling():
        record = sys.modules["torch.autograd.profiler"].record_function(name)
        record.__enter__()
    if NVTX:
        # Absent from torch's builds without CUDA, and from a process that has not imported torch.
        nvtx = getattr(getattr(sys.modules.get("torch"), "_C", None), "_nvtx", None)
        if nvtx is not None:
            nvtx.rangePushA(name)
    return record, nvtx


def _end(opened: tuple[Any, Any]) -> None:
    record, nvtx = opened
    if nvtx is not None:
        nvtx.rangePop()
    if record is not None:
        record.__exit__(None, None, None)


def _ranged(function: Any, name: str) -> Any:
    """The function under a range."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not (NVTX or _profiling()):
            return function(*args, **kwargs)
        opened = _begin(name)
        try:
            return function(*args, **kwargs)
        finally:
            _end(opened)

    return functools.update_wrapper(run, function)


def _marked(what: Any, names: dict[str, str]) -> Any:
    """The object with a new subclass in which these methods are ranges."""
    on_class: dict[str, str] = {}
    for method, name in names.items():
        if not method.startswith("__") and method in getattr(what, "__dict__", {}):
            setattr(what, method, _ranged(getattr(what, method), name))  # a class's method would not be reached
        else:
            on_class[method] = name
    if on_class:
        try:
            object.__setattr__(what, "__class__", _class_of(type(what), on_class))
        except TypeError:
            kind = type(what).__name__
            raise ValueError(f"Range: the methods of a {kind} can't be marked; wrap a function") from None
    return what


def _class_of(kind: type, names: dict[str, str]) -> type:
    """A subclass of `kind` with some methods marked. Its name, module, docstring and source are those of `kind`."""
    marked = {method: _ranged(getattr(kind, method), name) for method, name in names.items()}

    namespace = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    subclass: type = type(kind)(kind.__name__, (kind,), {**namespace, **marked})
    return subclass


def _methods_of(what: Any) -> tuple[str, ...]:
    """The methods in which an object of its kind does its work."""
    kind = type(what)
    if _is(what, "torch.nn", "Module"):
        return ("forward",)
    if _is(what, "torch.optim", "Optimizer"):
        return ("step",)
    if _is(what, "torch.utils.data", "Dataset"):
        return ("__getitem__",)
    methods = tuple(name for name in _METHODS if _has(kind, name))
    if methods:
        return methods
    raise ValueError(
        f"Range: a {kind.__name__} has none of {', '.join(_METHODS)}; name those to mark: Range(name, methods=...)"
    )


def _has(kind: type, name: str) -> bool:
    """Whether objects of the class have the method; `hasattr` would also find what makes the class callable."""
    return any(name in vars(base) for base in kind.__mro__)


def _is(what: Any, module: str, name: str) -> bool:
    """Whether `what` is an instance of this class of torch; False if torch was not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(what, kind)


def _name_of(what: Any) -> str:
    """The name of the class or function."""
    if inspect.isroutine(what):
        return what.__qualname__.replace("<locals>.", "")
    if isinstance(what, functools.partial):
        return _name_of(what.func)
    return type(what).__name__
