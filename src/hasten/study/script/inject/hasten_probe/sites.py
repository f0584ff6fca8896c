"""Lines of the user's own code, as opposed to those of libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

_known: dict[str, bool] = {}


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


def is_user(filename: str) -> bool:
    """Whether a code object's file is neither of the standard library nor of an installed package."""
    cached = _known.get(filename)
    if cached is None:
        cached = _known[filename] = _look(filename)
    return cached


def _look(filename: str) -> bool:
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


def made_at(new: Any) -> str:
    """Site of the innermost user code that makes `new`: constructors of its own classes aren't that."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        own_init = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is new
        if not own_init and is_user(frame.f_code.co_filename):
            return site_of(frame)
        frame = frame.f_back
    return ""


def nearest(depth: int = 1) -> str:
    """Site of the innermost frame of user code, `depth` frames above the caller's; "" if there is none."""
    frame: Any = sys._getframe(depth + 1)
    while frame is not None:
        if is_user(frame.f_code.co_filename):
            return site_of(frame)
        frame = frame.f_back
    return ""
