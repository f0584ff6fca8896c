from __future__ import annotations

import subprocess
import sys

import pytest

from hasten.engine.allocator import _glibc, kept_memory

SCRIPT = """
from hasten.engine.allocator import _glibc, _kept, kept_memory
libc = _glibc()
assert not _kept(libc)
with kept_memory() as outer:
    assert outer
    assert _kept(libc)
    with kept_memory() as inner:
        assert not inner
    assert _kept(libc), "the inner one must not end what the outer one began"
assert not _kept(libc)
try:
    with kept_memory():
        raise KeyError
except KeyError:
    assert not _kept(libc)
from hasten.engine.allocator import keep_freed_memory
keep_freed_memory()
with kept_memory() as kept:
    assert not kept
assert _kept(libc), "what a run keeps for good is kept for good"
print("passed")
"""


@pytest.mark.skipif(_glibc() is None, reason="needs glibc 2.33 or later")
def test_memory_is_kept_within_and_given_back_after() -> None:
    """In a process of its own: a failed allocation moves a thread to a heap that follows other rules."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "passed\n", done.stderr


def test_nothing_happens_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with kept_memory() as kept:
        assert not kept
