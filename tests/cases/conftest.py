from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.servers import Served, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as served:
        yield served


@pytest.fixture
def bucket(server: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    """The server as S3."""
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    return server
