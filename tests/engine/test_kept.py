from __future__ import annotations

import pytest

from hasten.engine.kept import _glibc, _kept, kept_memory

libc = _glibc()


@pytest.mark.skipif(libc is None, reason="needs glibc 2.33 or later")
def test_memory_is_kept_within_and_given_back_after() -> None:
    assert libc is not None
    if _kept(libc):
        pytest.skip("something keeps all freed memory of this process")
    with kept_memory() as outer:
        assert outer
        assert _kept(libc)
        with kept_memory() as inner:
            assert not inner
        assert _kept(libc), "the inner one must not end what the outer one began"
    assert not _kept(libc)


@pytest.mark.skipif(libc is None, reason="needs glibc 2.33 or later")
def test_memory_is_given_back_after_an_error() -> None:
    assert libc is not None
    if _kept(libc):
        pytest.skip("something keeps all freed memory of this process")
    with pytest.raises(RuntimeError, match="broken"), kept_memory():
        raise RuntimeError("broken")
    assert not _kept(libc)


def test_nothing_happens_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with kept_memory() as kept:
        assert not kept
