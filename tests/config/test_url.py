from __future__ import annotations

from pathlib import Path

from hasten.config.load import dump_run, load_run
from hasten.config.url import is_url, shown


def test_urls_and_paths() -> None:
    urls = "s3://bucket/set https://host/a.json?x=1 HTTP://host simplecache::gs://b/x file:///data az://c"
    assert all(map(is_url, urls.split()))
    paths = " data /data/set ./a:b C:/data a//b https:/host x=s3://b ~/set"
    assert not any(map(is_url, paths.split(" ")))


def test_secrets_are_not_shown() -> None:
    assert shown("https://me:pass@host/a.nii?sig=1") == "https://host/a.nii"
    assert shown("GET 'https://host/a?sig=1' and s3://key@b/c failed") == "GET 'https://host/a' and s3://b/c failed"
    assert shown("s3://bucket/a@b/c.nii") == "s3://bucket/a@b/c.nii"


def test_a_run_keeps_a_url_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("data: {source: 'https://host//set/list.json?a=1'}\n")
    config = load_run(path)
    assert config.data.source == "https://host//set/list.json?a=1"
    path.write_text(dump_run(config))
    assert load_run(path) == config
