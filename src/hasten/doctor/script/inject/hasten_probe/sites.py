"""Finds the lines of user code, as opposed to those of libraries."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from typing import Any


def _libraries() -> tuple[str, ...]:
    import site

    folders = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    for name in ("torch", "monai", "lightning", "pytorch_lightning", "ignite", "numpy"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            folders.append(os.path.dirname(os.path.abspath(file)))  # noqa: PTH100, PTH120
    both = {*folders, *(os.path.realpath(folder) for folder in folders)}
    return tuple(folder + os.sep for folder in both)


@functools.cache
def is_user(filename: str) -> bool:
    """Whether a code object's file belongs neither to the standard library nor to an installed package."""
    if filename.startswith("<"):
        return filename in ("<string>", "<stdin>")
    path = os.path.abspath(filename)  # noqa: PTH100
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    return not path.startswith(_libraries())


def site_of(frame: Any) -> str:
    """`/path/train.py:31`, with an absolute path."""
    filename = frame.f_code.co_filename
    return f"{filename if filename.startswith('<') else os.path.abspath(filename)}:{frame.f_lineno}"  # noqa: PTH100


def caller() -> Any:
    """The frame that called the wrapped function: the innermost outside this package."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return frame


def user_frame(frame: Any) -> Any:
    """The innermost frame of user code, from `frame` outwards; None if there is none."""
    while frame is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def made_at(new: Any) -> str:
    """Site of the user code that creates `new`, outside the constructors of its classes."""
    frame = user_frame(sys._getframe(1))
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is new:
        frame = user_frame(frame.f_back)
    return site_of(frame) if frame is not None else ""


def nearest() -> str:
    """Site of the innermost frame of user code; "" if there is none."""
    frame = user_frame(sys._getframe(1))
    return site_of(frame) if frame is not None else ""
