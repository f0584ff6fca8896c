"""The object that `augment.chain` names, from a user's file or module."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.config.augment import is_file


def load_chain(chain: str) -> tuple[Any, str]:
    """The object and the SHA-256 of the source that defines it ("" where there is none).

    chain: FILE.py:NAME or package.module:NAME. The code of it is executed. Raises ValueError for a file or module that
    is not there or that raises, with its line, and for a name that it does not have.
    """
    place, _, name = chain.rpartition(":")
    module, source = _from_file(Path(place)) if is_file(place) else _from_module(place)
    if name not in vars(module):
        names = [each for each in vars(module) if not each.startswith("_")]
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names) or 'none'}"
        raise ValueError(f"augment.chain: {place} has no name {name}; {hint}")
    return vars(module)[name], hashlib.sha256(source).hexdigest() if source else ""


def _from_file(path: Path) -> tuple[ModuleType, bytes]:
    """Compiled from the bytes that are returned, so that no cached bytecode of an older file can be taken for it."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"augment.chain: {path}: can't be read ({error.strerror}); write FILE.py:NAME with the file's full path"
        ) from None
    # Registered, as dataclasses and pickle look a class's module up; under a name that nobody else has.
    module = ModuleType(f"_hasten_chain_{hashlib.sha256(bytes(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
        raise ValueError(_raised(error, str(path))) from error
    return module, source


def _from_module(name: str) -> tuple[ModuleType, bytes]:
    origin = ""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        origin = spec.origin or ""
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(_raised(error, origin)) from error
        raise ValueError(
            f"augment.chain: there is no module {error.name}; put its folder on PYTHONPATH, or write FILE.py:NAME"
        ) from None
    except (Exception, SystemExit) as error:
        raise ValueError(_raised(error, origin)) from error
    path = Path(origin)
    return module, path.read_bytes() if path.is_file() else b""


def _raised(error: BaseException, path: str) -> str:
    """What the user's code raised, with the last of its lines that was executed; without `path`, the last of any."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"augment.chain: {path}:{error.lineno}: {(error.text or '').strip()}: {error.msg}; correct the file"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == path] if path else frames
    message = (str(error).strip().splitlines() or ["no message"])[0]
    place = f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else path
    return f"augment.chain: {place}: raises {type(error).__name__}: {message}; correct the file"
