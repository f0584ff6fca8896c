from __future__ import annotations

import hashlib
import json
import logging
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import nibabel as nib
import numpy as np
import pytest

from hasten.cases import remote
from hasten.cases.locate import Remote, local_name
from hasten.cases.remote import (
    Downloader,
    Missing,
    companions,
    complete_copy,
    fetch_all,
    record_path,
)
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from tests.cases.servers import Served, free_port
from tests.processes import Program

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

# Drawn from a seed: of random contents, one pair in sixty has the same Last-Modified.
CONTENT, OTHER = np.random.default_rng(0).bytes(3_000_001), np.random.default_rng(1).bytes(3_000_001)
QUICK = (0.001,) * 4
LABELS = {"0": "background", "1": "spleen"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Downloader, "waits_s", QUICK)


@pytest.fixture
def one(server: Served) -> Served:
    server.files = {"/set/a.nii.gz": CONTENT}
    return server


def get(server: Served, folder: Path, waits_s: tuple[float, ...] = QUICK, stall_s: float = 60, **more: Any) -> Path:
    downloader = Downloader(folder)
    downloader.waits_s, downloader.stall_s = waits_s, stall_s
    return downloader.fetch(f"{server.url}/set/a.nii.gz", **more)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.suffix != ".fetched"]


def test_a_file_is_fetched_once_and_anew_when_it_changes(one: Served, tmp_path: Path) -> None:
    path = get(one, tmp_path)
    assert path == tmp_path / f"http/127.0.0.1:{one.port}/set/a.nii.gz"
    assert path.read_bytes() == CONTENT
    assert json.loads(record_path(path).read_text())["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    status = path.stat()
    get(one, tmp_path)
    assert one.downloads() == ["/set/a.nii.gz"]
    one.validator = "modified"  # the same bytes under another version leave the file
    get(one, tmp_path)
    assert path.stat() == status
    one.files["/set/a.nii.gz"] = OTHER
    assert get(one, tmp_path).read_bytes() == OTHER
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("validator", ["etag", "weak", "modified", ""])
@pytest.mark.parametrize("ranges", [True, False])
def test_cut_off_downloads_are_resumed(one: Served, tmp_path: Path, validator: str, ranges: bool) -> None:
    one.validator, one.ranges, one.truncate = validator, ranges, 2
    assert get(one, tmp_path).read_bytes() == CONTENT
    assert len(one.downloads()) == 3
    # Only with a strong validator is it sure that the rest belongs to what is here.
    resumed = ranges and validator in ("etag", "modified")
    assert (one.sent < len(CONTENT) + 2 * (len(CONTENT) // 2)) is resumed
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("changed", [False, True])
def test_a_later_call_resumes_the_same_version_only(one: Served, tmp_path: Path, changed: bool) -> None:
    one.truncate = 3
    with pytest.raises(ValueError, match=r"after 2 attempts"):
        get(one, tmp_path, (0.001,))
    one.requests.clear()
    one.files["/set/a.nii.gz"] = OTHER if changed else CONTENT
    assert get(one, tmp_path).read_bytes() == one.files["/set/a.nii.gz"]
    first = next(range_ for method, _, range_ in one.requests if method == "GET")
    assert first.startswith("bytes=") is not changed
    assert hidden(tmp_path) == []


def test_a_whole_file_is_published_by_a_later_call(one: Served, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "hash_file", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(one, tmp_path)
    assert get(one, tmp_path).read_bytes() == CONTENT
    assert len(one.downloads()) == 1
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("fault", "status"), [("fail", 500), ("fail", 429), ("stall", 0)])
def test_failing_requests_are_tried_again(one: Served, tmp_path: Path, fault: str, status: int) -> None:
    setattr(one, fault, 2)
    one.fail_status = status
    assert get(one, tmp_path, (0.001,) * 12, stall_s=1.0).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT, b""])
def test_a_server_that_says_no_size(one: Served, tmp_path: Path, content: bytes) -> None:
    one.length, one.files["/set/a.nii.gz"] = False, content
    assert get(one, tmp_path).read_bytes() == content
    one.files["/set/a.nii.gz"] = OTHER
    with pytest.raises(ValueError, match=r"a\.nii\.gz: has .* or more, and 100 B at most are taken"):
        get(one, tmp_path, largest=100)


def test_a_damaged_copy_is_fetched_anew(one: Served, tmp_path: Path) -> None:
    path = get(one, tmp_path)
    for damage in (path, record_path(path)):
        damage.write_bytes(OTHER)
        assert get(one, tmp_path).read_bytes() == CONTENT
    os.utime(path)
    asked = len(one.downloads())
    get(one, tmp_path)
    assert len(one.downloads()) == asked  # the hash is still right


def test_a_copy_serves_while_the_server_is_gone(one: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = get(one, tmp_path)
    one.fail = 1 << 30
    assert get(one, tmp_path) == path
    assert "(the server answers 500)" in caplog.text
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="the server answers 500"):
        get(one, tmp_path)


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_what_is_not_there_or_refused_is_asked_for_once(bucket: Served, tmp_path: Path, scheme: str) -> None:
    url = f"{bucket.url}/set/b.nii" if scheme == "http" else "s3://set/b.nii"
    with pytest.raises(Missing, match=rf"^{url}: is not there \("):
        Downloader(tmp_path).fetch(url)
    bucket.fail, bucket.fail_status = 1 << 30, 403
    with pytest.raises(ValueError, match=r"access is refused .*credentials"):
        Downloader(tmp_path).fetch(url)


def test_the_hash_that_is_asked_for(one: Served, tmp_path: Path) -> None:
    right, wrong = hashlib.sha256(CONTENT).hexdigest(), hashlib.sha256(OTHER).hexdigest()
    one.files["/set/a.nii.gz"] = OTHER  # of the right size
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"has the SHA-256 {wrong}, but {right} is asked for; correct"):
            get(one, tmp_path, sha256=right)
        assert hidden(tmp_path) == []
    one.files["/set/a.nii.gz"] = CONTENT
    get(one, tmp_path, sha256=right.upper())
    one.requests.clear()
    get(one, tmp_path, sha256=right)
    assert one.requests == []


def test_many_at_once_end_with_one_file(one: Served, tmp_path: Path) -> None:
    one.truncate = 3
    with ThreadPoolExecutor(6) as pool:
        paths = list(pool.map(lambda _: get(one, tmp_path), range(6)))
    assert paths[0].read_bytes() == CONTENT
    assert len(one.downloads()) == 4
    assert hidden(tmp_path) == []


PROCESS = """
import sys
from pathlib import Path
from hasten.cases.remote import Downloader
print(Downloader(Path(sys.argv[2])).fetch(sys.argv[1]))
"""


def test_two_processes_end_with_one_file(one: Served, tmp_path: Path) -> None:
    both = [Program("-c", PROCESS, f"{one.url}/set/a.nii.gz", str(tmp_path)) for _ in range(2)]
    (path,) = {Path(process.communicate(timeout=600)[0].strip()) for process in both}
    assert complete_copy(path) is not None
    assert path.read_bytes() == CONTENT
    assert len(one.downloads()) == 1


def test_no_secret_is_told(one: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="hasten")
    url = f"http://user:hunter2@127.0.0.1:{one.port}/set/a.nii.gz?X-Amz-Signature=hunter2&X-Amz-Date=1"
    one.truncate = 1
    downloader = Downloader(tmp_path)
    path = downloader.fetch(url)
    assert downloader.fetch(url.replace("Date=1", "Date=2")) == path  # signed again it is the same file
    traces = []
    for kind, status in ((ValueError, 500), (Missing, 404)):
        one.fail, one.fail_status = 1 << 30, status
        with pytest.raises(kind) as failed:
            downloader.fetch(url.replace("a.nii", "b.nii"))
        traces += traceback.format_exception(failed.value)
    messages = [caplog.text, "".join(traces), *(str(each) for each in tmp_path.rglob("*"))]
    messages += [each.read_text() for each in tmp_path.rglob("*.fetched")]
    assert not [text for text in messages if "hunter2" in text or "user:" in text]


@pytest.mark.parametrize("fault", ["none", "fail", "truncate"])
def test_s3(bucket: Served, tmp_path: Path, fault: str) -> None:
    bucket.files = {"/set/a.nii.gz": CONTENT}
    setattr(bucket, fault, 2)
    path = Downloader(tmp_path).fetch("s3://set/a.nii.gz")
    assert path == tmp_path / "s3/set/a.nii.gz"
    assert path.read_bytes() == CONTENT
    bucket.files["/set/a.nii.gz"] = OTHER
    assert Downloader(tmp_path).fetch("s3://set/a.nii.gz").read_bytes() == OTHER
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]


def volume(value: int) -> bytes:
    image = nib.Nifti1Image(np.full((4, 5, 6), value, np.uint8), np.eye(4))
    return bytes(image.to_bytes())


def dataset(prefix: str = "/set", names: tuple[str, ...] = ("a", "b"), **changes: Any) -> dict[str, bytes]:
    content = {
        "name": "Set",
        "labels": LABELS,
        "modality": {"0": "CT"},
        "training": [{"image": f"./imagesTr/{n}.nii", "label": f"./labelsTr/{n}.nii"} for n in names],
        "test": ["./imagesTs/c.nii"],
    } | changes
    files = {f"{prefix}/imagesTs/c.nii": volume(3)}
    for name in names:
        files |= {f"{prefix}/imagesTr/{name}.nii": volume(2), f"{prefix}/labelsTr/{name}.nii": volume(1)}
    content = {key: value for key, value in content.items() if value is not None}
    return {f"{prefix}/dataset.json": json.dumps(content).encode(), **files}


def load(source: str | Path, folder: Path, **more: Any) -> CaseSet:
    return load_case_set(source, remote_dir=folder / "copy", **more)


def wrong(source: str | Path, folder: Path) -> str:
    with pytest.raises(ValueError) as raised:
        load(source, folder)
    return str(raised.value)


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


@pytest.mark.parametrize("end", ["", "/", "/dataset.json"])
def test_a_decathlon_set_over_http(server: Served, tmp_path: Path, end: str) -> None:
    server.files = dataset()
    result = load(server.url + "/set" + end, tmp_path)
    folder = tmp_path / f"copy/http/127.0.0.1:{server.port}/set"
    assert (result.name, result.source, result.channels) == ("Set", folder / "dataset.json", ("CT",))
    assert [(case.id, case.image, case.label) for case in result.cases] == [
        (name, (folder / f"imagesTr/{name}.nii",), folder / f"labelsTr/{name}.nii") for name in "ab"
    ]
    assert result.cases[0].image[0].read_bytes() == volume(2)
    assert len(server.downloads()) == 5  # not imagesTs
    assert load(server.url + "/set" + end, tmp_path) == result
    assert len(server.downloads()) == 5
    assert result == load_case_set(folder)  # what came is an ordinary data set


@pytest.mark.parametrize(
    "url",
    [
        "memory://x/set",
        "file:///x/set",
        "local:///x",
        "zip://a::https://host/x.zip",
        "github://me:repo@main/set",
        "dir://x",
        "simplecache::s3://b/set",
        "ftp://host/set",
        "ssh://host/set",
        "s3://b/a::file:///x/list.json",
    ],
)
def test_other_file_systems_are_refused(tmp_path: Path, url: str) -> None:
    assert "is not read; name a file beside the list" in wrong(url, tmp_path)
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"image": url, "label": "a.nii"}]))
    with pytest.raises(ValueError, match=r"list\.json: cases\[0\]: .* is not read"):
        load(path, tmp_path)


def test_a_list_that_is_too_long(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = dataset()
    monkeypatch.setattr("hasten.cases.remote._LARGEST_LIST", 100)
    assert "dataset.json: has" in wrong(f"{server.url}/set", tmp_path)
    assert server.downloads() == []


def test_a_local_list_of_urls(server: Served, tmp_path: Path) -> None:
    server.files = {"/x/a.nii": volume(2), "/y/a.nii": volume(1), "/x/b c.nii": volume(2)}
    (tmp_path / "b.nii").write_bytes(volume(1))
    right = hashlib.sha256(volume(2)).hexdigest()
    entries = [
        {"image": f"{server.url}/x/a.nii", "label": f"{server.url}/y/a.nii", "sha256": {"image": right}},
        {"image": [f"{server.url}/x/b%20c.nii"], "label": "b.nii", "sha256": {"image": [right]}},
    ]
    (tmp_path / "list.json").write_text(json.dumps(entries))
    result = load(tmp_path / "list.json", tmp_path)
    assert [case.id for case in result.cases] == ["a", "b c"]
    assert result.cases[1].label == tmp_path / "b.nii"
    assert result.cases[1].image[0].name == "b c.nii"
    with pytest.raises(ValueError, match=r"cases\[0\]: http://127.* is remote; pass remote_dir="):
        load_case_set(tmp_path / "list.json")
    with pytest.raises(ValueError, match=r"^http://127\.0\.0\.1:\d+/x: is remote; pass remote_dir="):
        load_case_set(f"{server.url}/x?key=1")


def test_a_csv_list_with_hashes(server: Served, tmp_path: Path) -> None:
    right, other = (hashlib.sha256(volume(value)).hexdigest() for value in (2, 1))
    server.files = {"/l/x/a.nii": volume(2), "/l/x/a2.nii": volume(2), "/l/y/a.nii": volume(1)}
    header = "image,label,id,image_sha256,label_sha256\n"
    server.files["/l/t.csv"] = f"{header}x/a.nii; x/a2.nii,y/a.nii,one,{right};{right},\n".encode()
    server.files["/l/labels.json"] = b'{"1": "nerve"}'
    result = load(f"{server.url}/l/t.csv", tmp_path)
    assert (result.cases[0].id, result.labels[1], len(result.channels)) == ("one", "nerve", 2)
    server.files["/l/t.csv"] = f"{header}x/a.nii,y/a.nii,one,{right},{right}\n".encode()
    said = wrong(f"{server.url}/l/t.csv", tmp_path)
    assert said.startswith(f"{server.url}/l/y/a.nii: has the SHA-256 {other}, but {right} ")
    for hashes in ("123,", f"{right};{right},"):
        server.files["/l/t.csv"] = f"{header}x/a.nii,y/a.nii,one,{hashes}\n".encode()
        assert 't.csv: line 2: "sha256" must be' in wrong(f"{server.url}/l/t.csv", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../a.nii",
        "x/../../a.nii",
        "/etc/passwd",
        "file:///etc/passwd",
        "local:///etc/passwd",
        "..\\a.nii",
        ".",
        "simplecache::file:///etc/passwd",
        "zip://a::https://host/x",
        "github://me:repo@main/a",
        "ssh://host/a",
        "https://host/../a.nii",
        "https://host/x/%2e%2e/a.nii",
    ],
)
def test_a_remote_list_stays_in_its_place(server: Served, tmp_path: Path, name: str) -> None:
    server.files = {"/l/list.json": json.dumps([{"image": name, "label": "a.nii"}]).encode()}
    with pytest.raises(ValueError, match=r"leads out of|leads elsewhere|is not read"):
        load(f"{server.url}/l/list.json", tmp_path)
    assert copies(tmp_path) == ["list.json"]


def test_what_is_missing_is_named(server: Served, tmp_path: Path) -> None:
    server.files = dataset(names=tuple("abcdefghijkl"))
    del server.files["/set/labelsTr/e.nii"]
    assert wrong(f"{server.url}/set", tmp_path).startswith(f"{server.url}/set/labelsTr/e.nii: is not there")
    assert wrong(f"{server.url}/none", tmp_path).startswith(f"{server.url}/none: has no dataset.json")
    assert wrong(f"{server.url}/none.json", tmp_path).startswith(f"{server.url}/none.json: is not there")


def test_a_server_that_is_gone(server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.files = dataset(names=tuple("abcdefghijklmnopqrst"))
    caplog.set_level(logging.INFO, logger="hasten")
    result = load(f"{server.url}/set", tmp_path)
    server.fail = 1 << 30
    server.requests.clear()
    assert load(f"{server.url}/set", tmp_path) == result
    assert {path for _, path, _ in server.requests} == {"/set/dataset.json"}  # it is not asked for the rest
    assert caplog.text.count("can't be reached") == 1
    result.cases[7].image[0].unlink()
    with pytest.raises(ValueError, match=r"h\.nii: can't be fetched"):
        load(f"{server.url}/set", tmp_path)


def test_the_first_error_ends_the_rest(server: Served, tmp_path: Path) -> None:
    downloader = Downloader(tmp_path)
    downloader.waits_s = (3600.0,)  # outlasts the test
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/{index}" for index in range(7)] + [f"{server.url}/none"]
    with pytest.raises(Missing):
        fetch_all([Remote(url=url, path=tmp_path / local_name(url)) for url in urls], downloader)
    assert downloader.stop.is_set()


def test_headers_bring_their_voxels(tmp_path: Path) -> None:
    for name, line in (("a.mhd", "ElementDataFile = sub/a.raw"), ("a.nhdr", "data file: sub/a.raw")):
        (tmp_path / name).write_text(f"Dims = 3\n{line}\n")
        (result,) = companions([Remote(url=f"https://host/x/{name}", path=tmp_path / name)])
        assert result == Remote(url="https://host/x/sub/a.raw", path=tmp_path / "sub/a.raw")
    (tmp_path / "a.mhd").write_text("ElementDataFile = LOCAL\n")
    assert companions([Remote(url="https://host/x/a.mhd", path=tmp_path / "a.mhd")]) == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/a/b.nii.gz", "s3/bucket/a/b.nii.gz"),
        ("https://me:pass@host:81/a%20b/c.nii?X-Amz-Signature=1&X-Amz-Date=2", "https/host:81/a b/c.nii"),
        ("https://acc.blob/a.nii?sv=1&sig=2&se=3", "https/acc.blob/a.nii"),
        ("https://host/a.nii?token=1", "https/host/a.nii"),
        ("HTTPS://host/a%2Fb", "https/host/a%2Fb"),
        ("https://host/.a", "https/host/_.a"),
    ],
)
def test_local_names(url: str, name: str) -> None:
    assert str(local_name(url)) == name


def test_local_names_are_distinct_and_stay_inside() -> None:
    asked = {local_name(f"https://host/get?{query}") for query in ("file=a", "file=b", "se=1", "se=2", "")}
    assert len(asked) == 5
    assert len(local_name("https://host/" + "x" * 999 + ".nii.gz").name) < 200
    assert local_name("https://host/" + "x" * 999 + ".nii.gz").name.endswith(".nii.gz")
    for url in ("https://host/../a", "s3://b/../a", "https://host/%2e%2e/a", "s3://"):
        with pytest.raises(ValueError, match=r"leads elsewhere|names no file"):
            local_name(url)
