from __future__ import annotations

from importlib import metadata

import pytest

from hasten.nnunet import check_version


@pytest.mark.parametrize("version", ["2.8", "2.8.1"])
def test_supported(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    check_version()


@pytest.mark.parametrize("version", ["2.5.2", "2.9.0", "3.0"])
def test_another_release_names_the_supported_one(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(ValueError, match=rf"nnunetv2 {version} .*written for 2.8: pip install 'hasten\["):
        check_version()


def test_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    check_version()
