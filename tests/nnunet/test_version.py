from __future__ import annotations

from importlib import metadata

import pytest

from hasten.nnunet import check_version


@pytest.mark.parametrize(("version", "supported"), [("2.8", True), ("2.8.1", True), ("2.5.2", False), ("3.0", False)])
def test_another_release_names_the_supported_one(
    version: str, supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    if supported:
        check_version()
    else:
        with pytest.raises(ValueError, match=rf"nnunetv2 {version} .*written for 2.8: pip install 'hasten\["):
            check_version()
