"""What differs between systems: each function here, and as another system has to do it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hasten import files, system
from hasten.system import BINARY, Span, map_files, map_privately, read_at, remove_lock, reserve, try_lock
from tests.portable.test_core import OTHER, environment

ROOT = Path(__file__).parents[1]
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "DupFd"}
CALLS = {
    "fork", "uname", "pread", "pwrite", "preadv", "pwritev", "killpg",
    "getsid", "setsid", "getpgid", "memfd_create", "symlink", "posix_fallocate", "posix_fadvise", "sched_getaffinity",
    "sched_setaffinity", "sysconf", "register_at_fork", "clock_gettime", "CLOCK_BOOTTIME", "SIGUSR1", "SIGKILL",
    "SIGHUP", "SIGQUIT", "SIGALRM", "AF_UNIX", "MAP_PRIVATE", "MAP_SHARED", "MAP_ANONYMOUS", "PROT_READ",
    "prctl", "madvise", "statvfs", "chown", "getuid", "geteuid", "mkfifo", "nice", "O_DIRECT",
}  # fmt: skip
GUARDED = {
    "system.py": "the module for it",
    "cache/item_bytes.py": "shared memory, which data sets do without on Windows",
    "distribute/world.py": "a rank's end with its launcher, on Linux alone",
    "doctor/environment/storage.py": "a read past the page cache, where it can be asked for",
    "doctor/script/launch.py": "groups and sessions, besides psutil's descendants",
    "doctor/script/inject/hasten_probe/__init__.py": "forked workers, where there are any",
    "doctor/script/inject/hasten_probe/exp_time.py": "a stranger's environment, without psutil",
    "doctor/script/inject/hasten_probe/session.py": "the same",
    "observe/clock.py": "psutil's time, where the kernel's can't be had",
    "observe/cores.py": "the cores of a process",
}
"""Modules that may name such calls, and why."""


def differs(path: Path) -> bool:
    """Whether a module imports or calls what some systems lack."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return bool({alias.name for node in imports for alias in node.names} & MODULES or attributes & CALLS)


def test_one_module_calls_what_only_some_systems_have() -> None:
    source = ROOT / "src/hasten"
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if differs(path)}
    assert found == set(GUARDED)


def test_text_is_read_and_written_as_utf8() -> None:
    """Windows has another default."""
    calls = [
        (f"{path.name}:{node.lineno}", node.func.attr, node)
        for path in (ROOT / "src/hasten").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    texts = [(where, node) for where, name, node in calls if name in ("read_text", "write_text") or opens_text(node)]
    assert len(texts) > 20
    assert [where for where, node in texts if "encoding" not in {each.arg for each in node.keywords}] == []


def opens_text(call: ast.Call) -> bool:
    mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    opens = isinstance(call.func, ast.Attribute) and call.func.attr == "open" and mode in ("r", "w", "a", "x", "r+")
    return opens or (
        "text" in {each.arg for each in call.keywords} and ast.unparse(call.func).startswith("subprocess.")
    )


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.bin" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number + 1]) * (4096 * number + 5))
    return paths


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("posix", [True, False])
def test_files_lie_at_their_places(three: list[Path], count: int, posix: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not posix:
        monkeypatch.setattr(system, "mmap", WithoutPosix)
    spans, expected = [], b""
    for path in three[:count]:
        expected += bytes(-len(expected) % 4096)
        spans.append(Span(path, len(expected), path.stat().st_size))
        expected += path.read_bytes()
    view = map_files(spans, len(expected))
    assert bytes(view) == expected
    assert np.frombuffer(view, np.uint8).sum() == sum(expected)
    with three[0].open("rb") as file:
        private = map_privately(file.fileno(), 5, 0)
    private[0] = 9
    assert three[0].read_bytes() == bytes([1]) * 5


class WithoutPosix:
    """The module `mmap` of Windows."""

    from mmap import ACCESS_COPY, ACCESS_READ, PAGESIZE, mmap


@pytest.mark.parametrize("hidden", ["", "pread"])
def test_threads_read_at_once(tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden:
        monkeypatch.delattr(os, hidden, raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([number]) * 100 for number in range(50)))
    handle, wrong = os.open(path, os.O_RDONLY | BINARY), []

    def read() -> None:
        wrong.extend(n for n in range(50) if read_at(handle, 100, 100 * n) != bytes([n]) * 100)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(handle)
    assert wrong == []


@pytest.mark.parametrize("hidden", ["", "posix_fallocate"])
def test_reserved_space_is_zeros(tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden:
        monkeypatch.delattr(os, hidden, raising=False)
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        reserve(file, 3_000_001)
        assert os.fstat(file.fileno()).st_size == 3_000_001
        file.seek(0)
        assert not any(file.read())


def test_one_handle_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = try_lock(path)
    assert first is not None
    assert try_lock(path) is None
    remove_lock(path, first)
    assert not path.exists()
    second = try_lock(path)
    assert second is not None
    os.close(second)


LOCKS = """
import os, sys
from pathlib import Path
from hasten.files import replacing
from hasten.system import remove_lock, try_lock
path = Path(sys.argv[1])
first = try_lock(path)
os.write(first, b"owner")
assert try_lock(path) is None and path.read_bytes() == b"owner"
remove_lock(path, first)
assert not path.exists()
second = try_lock(path)
waiting = path.open("rb")  # as another process that has just opened it
remove_lock(path, second)
assert path.exists()
waiting.close()
third = try_lock(path)
remove_lock(path, third)
assert not path.exists()
try:
    import fcntl
except ImportError:
    sys.exit("hidden from Hasten alone")
"""


def test_locks_as_on_windows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKS, str(tmp_path / "lock")]
    subprocess.run(command, env=environment(OTHER, tmp_path), check=True, timeout=120)


def test_a_file_that_is_open_is_replaced_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, refusals, plain = tmp_path / "file", iter([PermissionError, PermissionError]), Path.replace
    path.write_text("before", encoding="utf-8")

    def replace(self: Path, target: Path) -> Path:
        if error := next(refusals, None):
            raise error(13, "in use", str(self))
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(system, "os", SimpleNamespace(name="nt"))
    temporary = tmp_path / "new"
    temporary.write_text("after", encoding="utf-8")
    system.replace_file(temporary, path)
    monkeypatch.undo()
    assert path.read_text(encoding="utf-8") == "after"


def test_names_that_differ_by_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "not-made-yet" / name for name in ("a.png", "b.png", "A.png")]
    if sys.platform == "linux":
        assert files.same_files(paths) == []
    assert files.same_files([*paths, paths[0]]) == [paths[0], paths[0]]
    monkeypatch.setattr(files, "ignores_case", lambda folder: folder == tmp_path)
    assert files.same_files(paths) == [paths[0], paths[2]]


def test_a_file_system_that_ignores_case_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.platform != "linux" or not system.ignores_case(tmp_path)
    assert not system.ignores_case(tmp_path / "missing")
    plain = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: any(plain(path.with_name(name)) for name in names_like(path)))
    assert system.ignores_case(tmp_path)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def names_like(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir() if each.name.lower() == path.name.lower()]
