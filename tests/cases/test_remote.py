from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from hasten.cases.fetch import DownloadLimits, Missing, Unreachable
from hasten.cases.locate import FileLocator, Remote, join, local_name
from hasten.cases.remote import Downloader, companions, fetch_all
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from tests.cases.servers import Served, free_port

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

QUICK = DownloadLimits(stall_s=60, waits_s=(0.001,) * 3)
LABELS = {"0": "background", "1": "spleen"}


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
    return load_case_set(source, remote_dir=folder / "copy", limits=QUICK, **more)


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


def test_a_failing_stalling_truncating_server(server: Served, tmp_path: Path) -> None:
    server.files = dataset(names=tuple("abcdefgh"))
    server.fail, server.truncate, server.stall = 3, 3, 1
    limits = DownloadLimits(stall_s=1.0, waits_s=(0.001,) * 12)
    cases = load_case_set(f"{server.url}/set", remote_dir=tmp_path, limits=limits)
    assert [case.id for case in cases.cases] == list("abcdefgh")
    assert {case.image[0].read_bytes() for case in cases.cases} == {volume(2)}


@pytest.mark.parametrize("source", ["s3://set", "s3://set/dataset.json"])
def test_a_decathlon_set_on_s3(bucket: Served, tmp_path: Path, source: str) -> None:
    bucket.files = dataset()
    result = load(source, tmp_path)
    assert result.source == tmp_path / "copy/s3/set/dataset.json"
    assert [case.id for case in result.cases] == ["a", "b"]
    assert "c.nii" not in copies(tmp_path)


def test_an_nnunet_set_without_a_list(bucket: Served, tmp_path: Path) -> None:
    bucket.files = dataset(training=None, file_ending=".nii", labels={"background": 0, "spleen": 1})
    assert "lists no files, which a remote source must" in wrong("s3://set/", tmp_path)


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


def test_names_that_need_quoting(server: Served, tmp_path: Path) -> None:
    name = "a b#1%20?.nii"
    server.files = {"/l/list.json": json.dumps([{"image": name, "label": "b.nii"}]).encode()}
    server.files |= {f"/l/{name}": volume(2), "/l/b.nii": volume(1)}
    assert load(f"{server.url}/l/list.json", tmp_path).cases[0].image[0].read_bytes() == volume(2)


def test_what_is_missing_is_named(server: Served, tmp_path: Path) -> None:
    server.files = dataset(names=tuple("abcdefghijkl"))
    del server.files["/set/labelsTr/e.nii"]
    assert wrong(f"{server.url}/set", tmp_path).startswith(f"{server.url}/set/labelsTr/e.nii: is not there")
    assert wrong(f"{server.url}/none", tmp_path).startswith(f"{server.url}/none: has no dataset.json")
    assert wrong(f"{server.url}/none.json", tmp_path).startswith(f"{server.url}/none.json: is not there")


def test_what_is_broken_is_named(bucket: Served, tmp_path: Path) -> None:
    bucket.files = {"/l/list.json": b"{", "/l/x/a.nii": b""}
    assert "list.json: is not valid JSON at line 1" in wrong(f"{bucket.url}/l/list.json", tmp_path)
    assert wrong("s3://l", tmp_path).startswith("s3://l: has no dataset.json")
    bucket.fail, bucket.fail_status = 1 << 30, 403
    assert "access is refused" in wrong("s3://l", tmp_path)


def test_a_server_that_is_gone(server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.files = dataset(names=tuple("abcdefghijklmnopqrst"))
    caplog.set_level(logging.INFO, logger="hasten")
    result = load(f"{server.url}/set", tmp_path)
    assert "40 of 40 remote files were fetched" in caplog.text
    server.fail = 1 << 30
    server.requests.clear()
    assert load(f"{server.url}/set", tmp_path) == result
    assert "40 of 40 remote files could not be compared with the server" in caplog.text
    assert {path for _, path, _ in server.requests} == {"/set/dataset.json"}  # it is not asked for the rest
    assert caplog.text.count("can't be reached") == 1
    result.cases[7].image[0].unlink()
    with pytest.raises(Unreachable, match=r"h\.nii: can't be fetched"):
        load(f"{server.url}/set", tmp_path)


def test_the_first_error_ends_the_rest(server: Served, tmp_path: Path) -> None:
    downloader = Downloader(tmp_path, DownloadLimits(stall_s=60, waits_s=(3600.0,)))  # a wait that outlasts the test
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/{index}" for index in range(7)] + [f"{server.url}/none"]
    with pytest.raises(Missing):
        fetch_all([Remote(url=url, path=tmp_path / local_name(url)) for url in urls], downloader)
    assert downloader.filesystems.stop.is_set()


def test_headers_bring_their_voxels(server: Served, tmp_path: Path) -> None:
    pair = nib.Nifti1Pair(np.full((4, 5, 6), 2, np.uint8), np.eye(4))
    nib.save(pair, tmp_path / "a.img")
    server.files = {f"/l/{name}": (tmp_path / name).read_bytes() for name in ("a.img", "a.hdr")}
    server.files |= {"/l/b.nii": volume(1), "/l/list.json": b'[{"image": "a.img", "label": "b.nii"}]'}
    assert load(f"{server.url}/l/list.json", tmp_path).cases[0].image[0].with_suffix(".hdr").is_file()
    for name, line in (("a.mhd", "ElementDataFile = sub/a.raw"), ("a.nhdr", "data file: sub/a.raw")):
        (tmp_path / name).write_text(f"Dims = 3\n{line}\n")
        (result,) = companions([Remote(url=f"https://host/x/{name}", path=tmp_path / name)])
        assert result == Remote(url="https://host/x/sub/a.raw", path=tmp_path / "sub/a.raw")
    (tmp_path / "a.mhd").write_text("ElementDataFile = LOCAL\n")
    assert companions([Remote(url="https://host/x/a.mhd", path=tmp_path / "a.mhd")]) == []


def test_two_hashes_for_one_file(tmp_path: Path) -> None:
    one = [Remote(url="https://host/a", path=tmp_path / "a", sha256=digit * 64) for digit in "01"]
    with pytest.raises(ValueError, match=r"^https://host/a: is listed with two different SHA-256"):
        fetch_all(one, Downloader(tmp_path, QUICK))


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


def test_joined_names_are_below() -> None:
    assert join("https://host/x/", "./a b.nii", "list") == "https://host/x/a%20b.nii"
    assert join("s3://b/x", "y/a b.nii", "list") == "s3://b/x/y/a b.nii"
    place = FileLocator(folder=Path("/copy/s3/b"), url="s3://b", remote_dir=Path("/copy"))
    assert place.find("a.nii", "list") == Remote(url="s3://b/a.nii", path=Path("/copy/s3/b/a.nii"))
    with pytest.raises(ValueError, match=r"list: .* is not read"):
        place.find("a::file:///etc/passwd", "list")
    assert FileLocator(folder=Path("/x")).find("../a.nii", "list") == Path("/x/../a.nii")
