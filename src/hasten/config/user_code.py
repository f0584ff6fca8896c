"""The object that a setting names as FILE.py:NAME or package.module:NAME, from a user's file or module.

Nothing but the code that is named is executed: the file from its bytes, the module by an ordinary import.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.files import expanded


@dataclass(frozen=True, kw_only=True, slots=True)
class UserCode:
    """The object that a setting names, with its source."""

    value: Any
    source: bytes
    """Bytes of the file or module; empty where a module has none (a built-in one, or a shared library's package)."""
    path: str
    """Path of that file; "" where there is none."""

    @property
    def digest(self) -> str:
        """SHA-256 of the source; "" without one."""
        return digest_of(self.source)


def digest_of(source: bytes) -> str:
    """SHA-256 in hexadecimal; "" of nothing."""
    return hashlib.sha256(source).hexdigest() if source else ""


def name_mistake(setting: str, name: str, names: Sequence[str]) -> str:
    """What is wrong with a setting that is neither one of `names` nor names code."""
    similar = difflib.get_close_matches(re.sub(r"[^a-z0-9]", "", name.lower()), names, n=1)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    return f"{setting}: must be {', '.join(names)}, FILE.py:NAME or package.module:NAME (given {name}){hint}"


def own_mistakes(
    section: str, kinds: str, given: Any, unused: Iterable[str], from_run: Collection[str] = ()
) -> Iterator[str]:
    """What is wrong with a section whose `name` is the user's code, and `args` what it is called with.

    unused: settings that were given, and only the built-in `kinds` have. from_run: names that the run passes itself.
    """
    for name in unused:
        yield (
            f"{section}.{name}: is a setting of the built-in {kinds}, and {section}.name={given.name} has none; "
            f"leave it out, or give it to your code by {section}.args"
        )
    for name, value in given.args.items():
        if name in from_run:
            yield f"{section}.args.{name}: is given by the run; leave it out"
        elif not name.isidentifier():
            yield f"{section}.args: {name!r} is not a parameter's name; remove it"
        elif not is_plain(value):
            yield f"{section}.args.{name}: must be finite numbers, true, false, texts, or lists or dicts of these"


def is_plain(value: Any) -> bool:
    """Whether a value is null, a truth value, a finite number, a text, or lists or dicts of these."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def require_same_source(code: UserCode, digest: str | None, *, setting: str, remedy: str = "restore it") -> None:
    """Raises ValueError where a run began with a source of another digest.

    setting: "network.name=FILE.py:NAME", whose section has the field `digest`.
    """
    if digest not in (None, code.digest):
        field = f"{setting.partition('.')[0]}.digest"
        raise ValueError(
            f"{setting}: its source has changed since the run began ({field}={digest}); {remedy}, or continue with the "
            f"new one by {field}={code.digest}"
        )


def is_user_code(text: str) -> bool:
    """Whether it has the form FILE.py:NAME or package.module:NAME."""
    place, colon, name = text.rpartition(":")
    return bool(colon and place and name.isidentifier())


def is_file(place: str) -> bool:
    """Whether the part before the colon names a file, and not a module."""
    return place.endswith(".py") or "/" in place or "\\" in place


def absolute_code(text: str, folder: Path) -> str:
    """A relative file as seen from `folder`; a module, or anything else, stays as it is."""
    place, colon, name = text.rpartition(":")
    return f"{Path.cwd() / folder / expanded(place)}:{name}" if colon and is_file(place) else text


def name_of(value: Any) -> str:
    """The FILE.py:NAME or package.module:NAME of a class, a function, or another object at the top of a file.

    Raises ValueError for one without such a name.
    """
    name, home = getattr(value, "__qualname__", ""), getattr(value, "__module__", None)
    if not name and not is_plain(value):
        home, name = _global(value) or (None, "")
    if not isinstance(name, str) or not name.isidentifier():
        label = name or type(value).__name__
        raise ValueError(f"{label}: has no name at the top of a file, so that it can't be found again; define it there")
    if home is not None and home != "__main__" and getattr(sys.modules.get(home), name, None) is value:
        spec = getattr(sys.modules[home], "__spec__", None)
        if spec is not None:
            return f"{home}:{name}"
    try:
        path = Path(inspect.getsourcefile(value) or "")
    except TypeError:
        path = Path(getattr(sys.modules.get(str(home)), "__file__", None) or "")
    if not path.is_file():
        raise ValueError(f"{name}: is defined in no file, so that it can't be found again; write it into one")
    return f"{path.absolute()}:{name}"


def _global(value: Any) -> tuple[str, str] | None:
    """Module and name of the object itself, in a module that is loaded; the script that runs comes last."""
    for home, module in sorted(sys.modules.items(), key=lambda item: item[0] == "__main__"):
        for name, each in list(getattr(module, "__dict__", {}).items()):
            if each is value and name.isidentifier():
                return home, name
    return None


def load_user_code(text: str, *, setting: str) -> UserCode:
    """The object that `text` names, and the source that defines it.

    text: FILE.py:NAME or package.module:NAME. The code of it is executed. Raises ValueError that begins with `setting`
    for a file or module that is missing or raises (with the line), and for a name that it does not define.
    """
    place, _, name = text.rpartition(":")
    if is_file(place):
        module, source = _from_file(Path(place), setting)
        path = place
    else:
        module, source, path = _from_module(place, setting)
    if name not in vars(module):
        names = [each for each in vars(module) if not each.startswith("_")]
        similar = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(similar)}?" if similar else f"it has {', '.join(names) or 'none'}"
        raise ValueError(f"{setting}: {place} has no name {name}; {hint}")
    return UserCode(value=vars(module)[name], source=source, path=path)


def source_of(text: str) -> bytes | None:
    """The source that `text` would be loaded from, None if it is missing. Imports the packages of a module."""
    place, _, _ = text.rpartition(":")
    try:
        if is_file(place):
            return Path(place).read_bytes()
        spec = importlib.util.find_spec(place)
    except (Exception, SystemExit):  # a package that raises contains no usable module
        return None
    if spec is None:
        return None
    path = Path(spec.origin or "")
    return path.read_bytes() if path.is_file() else b""


def raised_text(error: BaseException, path: str) -> str:
    """The error of the user's code with its last executed line; without `path`, the last line of any file."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}:{error.lineno}: {(error.text or '').strip()}: {error.msg}; correct the file"
    frames = traceback.extract_tb(error.__traceback__)
    matching = [frame for frame in frames if frame.filename == path] if path else frames
    message = (str(error).strip().splitlines() or ["no message"])[0]
    place = f"{matching[-1].filename}:{matching[-1].lineno}: {matching[-1].line}" if matching else path
    return f"{place}: raises {type(error).__name__}: {message}; correct the file"


def _from_file(path: Path, setting: str) -> tuple[ModuleType, bytes]:
    """Compile from the returned bytes, so that cached bytecode of an older file is never used."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{setting}: {path}: can't be read ({error.strerror}); write FILE.py:NAME with the file's full path"
        ) from None
    # Registered under a unique name, as dataclasses and pickle look up the module of a class.
    module = ModuleType(f"_hasten_user_{hashlib.sha256(bytes(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before
        raise ValueError(f"{setting}: {raised_text(error, str(path))}") from error
    return module, source


def _from_module(name: str, setting: str) -> tuple[ModuleType, bytes, str]:
    origin = ""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        origin = spec.origin or ""
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{setting}: {raised_text(error, origin)}") from error
        raise ValueError(
            f"{setting}: there is no module {error.name}; put its folder on PYTHONPATH, or write FILE.py:NAME"
        ) from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{setting}: {raised_text(error, origin)}") from error
    path = Path(origin)
    return (module, path.read_bytes(), origin) if path.is_file() else (module, b"", "")
