"""Named ranges for profiles by torch.profiler and Nsight Systems.

They are on only while torch's profiler records, or in a process that Nsight Systems profiles (it sets an environment
variable there; HASTEN_NVTX=1 does the same). Where they are off, they only check a flag of torch.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

LOADING, FORWARD, BACKWARD, OPTIMIZER = "data loading", "forward", "backward", "optimizer"
VALIDATION, CHECKPOINT = "validation", "checkpoint"
PHASES = (LOADING, FORWARD, BACKWARD, OPTIMIZER, VALIDATION, CHECKPOINT)
"""Names of a training's ranges, in the order of a step."""

_NSIGHT = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH")
"""Set by `nsys` for the process that it profiles: the second from its start, the first once it records."""
_METHODS = ("forward", "step", "__call__", "__next__", "__getitem__")
"""The method in which an object does its work: the first that its class has."""

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
    ask, and can be copied as before, but not pickled. Its range is that of `forward`, `step`, `__call__`, `__next__` or
    `__getitem__`, the first that it has; raises ValueError for an object that has none. Without a name it is that of
    the object's class or of the function. As a context, one `Range` is for one thread.
    """

    __slots__ = ("_open", "name")

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self._open: list[tuple[Any, Any]] = []
        """torch's record and the NVTX module of each range that is open."""

    def __enter__(self) -> Range:
        if ranges_on():
            self._begin(self.name or "context")
        return self

    def _begin(self, name: str) -> None:
        record = nvtx = None
        if _profiling():
            record = sys.modules["torch.autograd.profiler"].record_function(name)
            record.__enter__()
        if NVTX:
            # Absent from torch's builds without CUDA, and from a process that has not imported torch.
            nvtx = getattr(getattr(sys.modules.get("torch"), "_C", None), "_nvtx", None)
            if nvtx is not None:
                nvtx.rangePushA(name)
        self._open.append((record, nvtx))

    def __exit__(self, *error: object) -> None:
        record, nvtx = self._open.pop() if self._open else (None, None)
        if nvtx is not None:
            nvtx.rangePop()
        if record is not None:
            record.__exit__(None, None, None)

    def __call__(self, what: What) -> What:
        target: Any = what
        name = self.name or _name_of(what)
        if inspect.isroutine(what) or isinstance(what, functools.partial):
            return _ranged(target, name)
        if isinstance(what, type):
            raise ValueError(f"Range: {what.__name__} is a class; give an object of it, or decorate its methods")
        return _marked(target, name)


def _ranged(function: Any, name: str) -> Any:
    """The function under a range."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not ranges_on():
            return function(*args, **kwargs)
        with Range(name):
            return function(*args, **kwargs)

    return functools.update_wrapper(run, function)


def _marked(what: Any, name: str) -> Any:
    """The object, of a new subclass in which its method is a range; name and source of the class stay."""
    kind: Any = type(what)
    # `hasattr` would also find what makes the class itself callable.
    method = next((each for each in _METHODS if any(each in vars(base) for base in kind.__mro__)), None)
    if method is None:
        raise ValueError(f"Range: a {kind.__name__} has none of {', '.join(_METHODS)}; wrap a function")
    namespace = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        method: _ranged(getattr(kind, method), name),
    }
    try:
        object.__setattr__(what, "__class__", type(kind)(kind.__name__, (kind,), namespace))
    except TypeError:
        raise ValueError(f"Range: the methods of a {kind.__name__} can't be marked; wrap a function") from None
    return what


def _name_of(what: Any) -> str:
    """The name of the class or function."""
    if inspect.isroutine(what):
        return what.__qualname__.replace("<locals>.", "")
    if isinstance(what, functools.partial):
        return _name_of(what.func)
    return type(what).__name__
