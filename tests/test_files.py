"""Paths of users, with and without a home folder."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

import pytest

from hasten.cache.key import cache_dir
from hasten.cases.public import data_home
from hasten.config.load import load_run
from hasten.config.schema import CacheConfig
from hasten.files import expanded


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without $HOME whom the system doesn't know, as in many containers."""

    def unknown(user: Any) -> Any:
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "HASTEN_CACHE", "HASTEN_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_a_home_folder_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert [expanded("~/x"), expanded("a/~"), expanded(Path("b"))] == [Path("/home/me/x"), Path("a/~"), Path("b")]


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(("path", "whose"), [("~/x", "this user"), ("~nobody9/x", "a user nobody9")])
def test_without_a_home_folder_the_path_is_asked_for(path: str, whose: str) -> None:
    with pytest.raises(ValueError, match=f"{path}: {whose} has no home folder"):
        expanded(path)
    with pytest.raises(ValueError, match="has no home folder"):
        load_run(overrides=[f"data.source={path}"])


@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_the_variables_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"\$HASTEN_CACHE"):
        cache_dir(CacheConfig())
    with pytest.raises(ValueError, match=r"\$HASTEN_DATA"):
        data_home()
    assert cache_dir(CacheConfig(dir=str(tmp_path))) == tmp_path
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
    assert cache_dir(CacheConfig()) == tmp_path
