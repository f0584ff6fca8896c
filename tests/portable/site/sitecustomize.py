"""Makes a Python process, and those that it starts, look to Hasten like one on Windows or macOS.

Chosen by HASTEN_TEST_SYSTEM (win32 or darwin), with this folder on PYTHONPATH. What those systems lack is hidden from
Hasten's modules alone: torch and the other libraries have their own ways there. What the systems refuse (files that are
open renamed or removed, names with a colon, links) is refused to everybody.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import multiprocessing
import os
import re
import struct
import sys
import threading
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
_LINUX = {
    "os": "sched_ posix_fallocate posix_fadvise POSIX_FADV_ memfd_create MFD_ O_DIRECT O_TMPFILE getrandom eventfd",
    "time": "CLOCK_BOOTTIME",
    "mmap": "MAP_POPULATE MAP_HUGETLB MAP_LOCKED",
    "signal": "SIGRTMIN SIGRTMAX SIGPWR SIGPOLL",
    "socket": "AF_PACKET AF_NETLINK",
}
_POSIX = {
    "os": "fork register_at_fork spawn exec wait W kill get set pread pwrite readv writev sendfile sysconf confstr "
    "statvfs mkfifo mknod nice chown lchown fchown fchmod uname fdatasync sync pathconf fpathconf O_CLOEXEC "
    "O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC ctermid posix_ openpty login_tty sched_ memfd_create MFD_",
    "time": "clock_gettime clock_settime CLOCK_ pthread_getcpuclockid tzset",
    "mmap": "MAP_ PROT_ MADV_",
    "signal": "SIGUSR SIGKILL SIGHUP SIGQUIT SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGPIPE SIGRT alarm setitimer "
    "getitimer pause pthread_ sigwait sigpending siginterrupt",
    "socket": "AF_UNIX AF_PACKET AF_NETLINK socketpair send_fds recv_fds",
    "select": "poll epoll EPOLL POLL",
    "multiprocessing.reduction": "DupFd send_handle recv_handle",
}
"""What Hasten must not count on, as the beginnings of names, by module."""
_KEPT = {"os": {"kill", "getpid", "getppid", "getcwd", "getcwdb", "getenv", "getlogin", "get_terminal_size",
                "get_inheritable", "set_inheritable", "get_blocking", "set_blocking", "get_exec_path"}}  # fmt: skip
"""What Windows has of these."""
_NO_NAME = re.compile(r'[<>:"|?*]|[. ]$')
_KERNEL_FILES = ("/proc", "/sys", "/dev/shm")
_O_BINARY = 0x40000000
_OURS = __file__
_look = threading.local()
"""Whether this thread looks for itself which files are open."""


class _Hidden(types.ModuleType):
    """A module as another system has it."""

    def __init__(self, module: Any, beginnings: str, *, posix_name: bool, **changed: Any) -> None:
        super().__init__(module.__name__)
        kept = _KEPT.get(module.__name__, set()) if posix_name else set()
        hidden = tuple(beginnings.split())
        names = {name: value for name, value in vars(module).items() if name in kept or not name.startswith(hidden)}
        self.__dict__.update(names | changed)


def _install(system: str) -> None:
    windows = system == "win32"
    hidden = _POSIX if windows else _LINUX
    changed = _of_windows() if windows else {"ctypes": {"CDLL": _cdll_of_macos}, "sys": {}}
    changed["sys"] = {"platform": system}
    modules = {
        name: _Hidden(sys.modules.get(name) or __import__(name, fromlist=["*"]), hidden.get(name, "- "),
                      posix_name=windows, **changed.get(name, {}))
        for name in {*hidden, *changed} if name != "msvcrt"
    }  # fmt: skip
    if windows:
        modules["msvcrt"] = types.SimpleNamespace(**changed["msvcrt"])
    plain_import = builtins.__import__

    def import_for(name: str, given: Any = None, *rest: Any, **more: Any) -> Any:
        if given is not None and str(given.get("__name__", "")).startswith("hasten"):
            if windows and name in _POSIX_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in modules:
                return modules[name]
        return plain_import(name, given, *rest, **more)

    builtins.__import__ = import_for
    warnings.filterwarnings("ignore", category=EncodingWarning)
    warnings.filterwarnings("error", category=EncodingWarning, module="hasten")
    _hide_kernel_files()
    sys.addaudithook(_refuse_as_windows if windows else _refuse_as_macos)


def _of_windows() -> dict[str, dict[str, Any]]:
    locks = {"LK_LOCK": 1, "LK_NBLCK": 2, "LK_UNLCK": 0, "locking": _locking}
    return {
        "os": {"name": "nt", "O_BINARY": _O_BINARY, "open": _open_as_windows, "kill": _kill_as_windows},
        "ctypes": {"CDLL": _cdll_of_windows},
        "msvcrt": locks,
        "multiprocessing": {
            "get_all_start_methods": lambda: ["spawn"],
            "get_context": lambda method=None: _spawn_only(method),
        },
    }


def _spawn_only(method: str | None) -> Any:
    if method not in (None, "spawn"):
        raise ValueError(f"cannot find context for {method!r}")
    return multiprocessing.get_context("spawn")


def _open_as_windows(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    assert flags & _O_BINARY or str(path) == os.devnull, f"{path}: line breaks would be translated"
    return os.open(path, flags & ~_O_BINARY, mode, **more)


def _kill_as_windows(pid: int, number: int) -> None:
    raise AssertionError("os.kill ends a process on Windows, whatever the signal")


def _locking(handle: int, mode: int, count: int) -> None:
    """Mandatory on Windows; here advisory, but also of an open file, not of a process."""
    import fcntl

    start = os.lseek(handle, 0, os.SEEK_CUR)
    kind = fcntl.F_UNLCK if mode == 0 else fcntl.F_WRLCK
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, count, 0))
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


def _cdll_of_windows(name: str | None, *arguments: Any, **more: Any) -> Any:
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    return _cdll_of_macos(name, *arguments, **more)


def _cdll_of_macos(name: str | None, *arguments: Any, **more: Any) -> Any:
    if name == "libc.so.6":
        raise OSError(f"{name}: not found")
    return ctypes.CDLL(name, *arguments, **more)


def _hide_kernel_files() -> None:
    for name in ("exists", "is_file", "is_dir"):
        plain = getattr(Path, name)

        def look(self: Path, *arguments: Any, plain: Any = plain, **more: Any) -> bool:
            return not str(self).startswith(_KERNEL_FILES) and plain(self, *arguments, **more)

        setattr(Path, name, look)


def _refuse_as_macos(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(_KERNEL_FILES) and _by_hasten():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(arguments[0]))


def _refuse_as_windows(event: str, arguments: tuple[Any, ...]) -> None:
    _refuse_as_macos(event, arguments)
    if event == "os.symlink" and _by_hasten():
        raise OSError(errno.EPERM, "A required privilege is not held by the client")
    if (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT) or event == "os.mkdir":
        _check_name(arguments[0])
    elif event in ("os.remove", "os.rename") and _by_hasten():
        if event == "os.rename":
            _check_name(arguments[1])
        folders = (arguments[1],) if event == "os.remove" else arguments[2:4]
        for path, folder in zip(arguments[: len(folders)], folders, strict=True):
            _check_closed(path, folder)


def _check_name(path: Any) -> None:
    if isinstance(path, str) and _NO_NAME.search(os.path.basename(path)) and _by_hasten():  # noqa: PTH119
        raise OSError(errno.EINVAL, "Invalid argument", path)


def _check_closed(path: Any, folder: int) -> None:
    """Raise the PermissionError of Windows for a file, or a folder with one, that this process has open or mapped."""
    base = os.readlink(f"/proc/self/fd/{folder}") if folder not in (-1, None) else ""  # noqa: PTH115
    real = os.path.realpath(os.path.join(base, os.fsdecode(path)))  # noqa: PTH118
    _look.own = True
    try:
        used = _files_in_use()
    finally:
        _look.own = False
    if any(each == real or each.startswith(f"{real}/") for each in used):
        raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used", real)


def _files_in_use() -> set[str]:
    used = set()
    for each in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            used.add(os.readlink(f"/proc/self/fd/{each}"))  # noqa: PTH115
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        return used | {line.split(maxsplit=5)[5].strip() for line in maps if " /" in line}


def _by_hasten() -> bool:
    """Whether a function of Hasten's is the cause, directly or by the standard library, but for its nameless files."""
    if getattr(_look, "own", False):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        if name.startswith("hasten"):
            return True
        if name == "tempfile" or (file != _OURS and name.partition(".")[0] not in sys.stdlib_module_names):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _start(environment: Mapping[str, str]) -> None:
    if system := environment.get("HASTEN_TEST_SYSTEM"):
        _install(system)


_start(os.environ)
