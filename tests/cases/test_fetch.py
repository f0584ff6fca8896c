from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases import fetch as fetching
from hasten.cases.fetch import DownloadLimits, Fetched, Missing, Unreachable, complete_copy, fetch, record_path
from hasten.cases.locate import local_name
from hasten.cases.transport import RemoteFilesystems, chunk_of
from tests.cases.servers import Served, free_port
from tests.processes import Program

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

CONTENT = os.urandom(3_000_001)
OTHER = os.urandom(3_000_001)
PATIENT = DownloadLimits(stall_s=60, waits_s=(0.001,) * 4)
HASTY = DownloadLimits(stall_s=0.3, waits_s=(0.001,) * 12)
"""A loaded machine may be slower than the stall once or twice, but hardly thirteen times."""


@pytest.fixture
def server(server: Served) -> Served:
    server.files = {"/set/a.nii.gz": CONTENT}
    return server


def get(server: Served, folder: Path, limits: DownloadLimits = PATIENT, **more: Any) -> Fetched:
    return fetch(f"{server.url}/set/a.nii.gz", folder, limits=limits, **more)


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.partial")]


def test_a_file_is_fetched_once_and_then_kept(server: Served, tmp_path: Path) -> None:
    made = get(server, tmp_path)
    assert made == Fetched(path=tmp_path / f"http/127.0.0.1:{server.port}/set/a.nii.gz", how="new", size=len(CONTENT))
    assert made.path.read_bytes() == CONTENT
    record = json.loads(record_path(made.path).read_text())
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["size"] == len(CONTENT)
    status = made.path.stat()
    assert get(server, tmp_path).how == "unchanged"
    assert made.path.stat() == status
    assert server.downloads() == ["/set/a.nii.gz"]
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("validator", ["etag", "weak", "modified", ""])
@pytest.mark.parametrize("ranges", [True, False])
def test_cut_off_downloads_are_gone_on_with(server: Served, tmp_path: Path, validator: str, ranges: bool) -> None:
    server.validator, server.ranges, server.truncate = validator, ranges, 2
    made = get(server, tmp_path)
    assert made.path.read_bytes() == CONTENT
    assert len(server.downloads()) == 3
    resumed = ranges and validator in ("etag", "modified")
    asked = [range_ for method, _, range_ in server.requests if method == "GET"]
    # Only with a strong validator is it sure that the rest belongs to what is here.
    assert any(range_ for range_ in asked) is (validator != "")
    assert (server.sent < len(CONTENT) + 2 * (len(CONTENT) // 2)) is resumed
    assert left_over(tmp_path) == []


def test_a_later_call_goes_on_where_one_gave_up(server: Served, tmp_path: Path) -> None:
    server.truncate = 3
    with pytest.raises(Unreachable, match=r"after 2 attempts .*ended early.*run again"):
        get(server, tmp_path, DownloadLimits(stall_s=60, waits_s=(0.001,)))
    assert len(left_over(tmp_path)) == 1
    server.requests.clear()
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    assert all(range_.startswith("bytes=") for method, _, range_ in server.requests if method == "GET")
    assert left_over(tmp_path) == []


def test_a_partial_file_of_another_version_is_not_gone_on_with(server: Served, tmp_path: Path) -> None:
    server.truncate = 1
    with pytest.raises(Unreachable):
        get(server, tmp_path, DownloadLimits(stall_s=60, waits_s=()))
    server.files["/set/a.nii.gz"] = OTHER
    assert len(left_over(tmp_path)) == 1
    assert get(server, tmp_path).path.read_bytes() == OTHER
    assert left_over(tmp_path) == []


def test_a_file_that_changes_while_it_is_fetched_is_fetched_whole(server: Served, tmp_path: Path) -> None:
    read = RemoteFilesystems.read

    def change(self: RemoteFilesystems, *args: Any) -> Iterator[tuple[int, bytes]]:
        yield from read(self, *args)
        server.files["/set/a.nii.gz"] = OTHER

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteFilesystems, "read", change)
        assert get(server, tmp_path).path.read_bytes() == OTHER
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_failing_requests_are_tried_again(server: Served, tmp_path: Path, status: int) -> None:
    server.fail, server.fail_status = 5, status
    assert get(server, tmp_path).path.read_bytes() == CONTENT


def test_a_stall_is_a_failure(server: Served, tmp_path: Path) -> None:
    server.stall = 2
    assert get(server, tmp_path, HASTY).path.read_bytes() == CONTENT
    assert server.sent < 2 * len(CONTENT)
    server.stall, server.files["/set/a.nii.gz"] = 1000, OTHER
    with pytest.raises(Unreachable, match=r"nothing came for 0\.3 s"):
        fetch(f"{server.url}/set/a.nii.gz", tmp_path / "new", limits=DownloadLimits(stall_s=0.3, waits_s=(0.001,)))


@pytest.mark.parametrize("validator", ["etag", ""])
def test_a_server_that_says_no_size(server: Served, tmp_path: Path, validator: str) -> None:
    server.length, server.validator = False, validator
    made = get(server, tmp_path)
    assert made.path.read_bytes() == CONTENT
    status = made.path.stat()
    # Without size and validator nothing tells whether it is the same: it is read again, and the file stays if it is.
    assert get(server, tmp_path).how == ("unchanged" if validator else "new")
    assert made.path.stat() == status
    server.files["/set/a.nii.gz"] = OTHER
    assert get(server, tmp_path).path.read_bytes() == OTHER


def test_an_empty_file(server: Served, tmp_path: Path) -> None:
    server.files["/set/a.nii.gz"] = b""
    assert get(server, tmp_path).path.read_bytes() == b""
    assert get(server, tmp_path).how == "unchanged"


def test_a_changed_file_is_fetched_anew(server: Served, tmp_path: Path) -> None:
    get(server, tmp_path)
    server.files["/set/a.nii.gz"] = OTHER
    made = get(server, tmp_path)
    assert (made.how, made.path.read_bytes()) == ("new", OTHER)


def test_the_same_bytes_under_a_new_etag_leave_the_file(server: Served, tmp_path: Path) -> None:
    first = get(server, tmp_path)
    status = first.path.stat()
    server.validator = "modified"
    assert get(server, tmp_path).how == "new"
    assert first.path.stat() == status
    assert get(server, tmp_path).how == "unchanged"


def test_a_damaged_copy_is_fetched_anew(server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = get(server, tmp_path).path
    path.write_bytes(CONTENT[:-1])
    assert get(server, tmp_path).how == "new"
    assert path.read_bytes() == CONTENT
    assert f"{path}: has {len(CONTENT) - 1} bytes, not {len(CONTENT)}" in caplog.text
    times = path.stat()
    with path.open("r+b") as file:
        file.write(bytes([CONTENT[0] ^ 1]) + CONTENT[1:3])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert get(server, tmp_path).how == "unchanged"  # the size and the time are right: only the hash can tell
    assert get(server, tmp_path, verify=True).how == "new"
    assert path.read_bytes() == CONTENT
    path.write_bytes(OTHER)  # the time tells
    assert get(server, tmp_path).how == "new"
    assert path.read_bytes() == CONTENT
    os.utime(path)
    assert get(server, tmp_path).how == "unchanged"
    record_path(path).write_text("{}")
    assert get(server, tmp_path).how == "new"
    assert f"{record_path(path)}: is damaged" in caplog.text


def test_a_copy_serves_while_the_server_is_gone(
    server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = get(server, tmp_path).path
    server.fail = 1 << 30
    assert get(server, tmp_path) == Fetched(path=path, how="stale", size=len(CONTENT))
    assert "(the server answers 500)" in caplog.text
    assert "existing copy is used" in caplog.text
    path.write_bytes(b"damaged")
    with pytest.raises(Unreachable, match="the server answers 500"):
        get(server, tmp_path)


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(Unreachable, match=r"^http://127\.0\.0\.1:\d+/a: .*after 5 attempts"):
        fetch(f"http://127.0.0.1:{free_port()}/a", tmp_path, limits=PATIENT)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_what_is_not_there_is_asked_for_once(bucket: Served, tmp_path: Path, scheme: str) -> None:
    url = f"{bucket.url}/set/b.nii" if scheme == "http" else "s3://set/b.nii"
    with pytest.raises(Missing, match=rf"^{url}: is not there \("):
        fetch(url, tmp_path, limits=PATIENT)
    assert len([path for _, path, _ in bucket.requests if path == "/set/b.nii"]) <= 2  # HEAD, and GET for HTTP
    bucket.fail, bucket.fail_status = 1 << 30, 403
    with pytest.raises(ValueError, match=r"access is refused .*credentials"):
        fetch(url, tmp_path, limits=PATIENT)


def test_the_hash_that_is_asked_for(server: Served, tmp_path: Path) -> None:
    right, wrong = hashlib.sha256(CONTENT).hexdigest(), hashlib.sha256(OTHER).hexdigest()
    server.files["/set/a.nii.gz"] = OTHER  # of the right size
    with pytest.raises(ValueError, match=rf"has the SHA-256 {wrong}, but {right} is asked for; correct"):
        get(server, tmp_path, sha256=right)
    assert complete_copy(tmp_path / local_name(f"{server.url}/set/a.nii.gz")) is None
    assert left_over(tmp_path) == []
    get(server, tmp_path)
    with pytest.raises(ValueError, match=rf"but {right} is asked for"):
        get(server, tmp_path, sha256=right)
    server.files["/set/a.nii.gz"] = CONTENT
    assert get(server, tmp_path, sha256=right.upper()).how == "new"
    server.requests.clear()
    assert get(server, tmp_path, sha256=right).how == "unchanged"
    assert server.requests == []


def test_a_full_disk_leaves_nothing(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching.os, "fsync", full)
    with pytest.raises(ValueError, match=r"a\.nii\.gz: the disk is full .*cache\.dir"):
        get(server, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_system_without_locks(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    server.truncate = 1
    assert get(server, tmp_path).path.read_bytes() == CONTENT
    assert left_over(tmp_path) == []


def test_many_at_once_end_with_one_file(server: Served, tmp_path: Path) -> None:
    server.truncate = 3
    made: list[Fetched] = []
    threads = [threading.Thread(target=lambda: made.append(get(server, tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.how for each in made) == ["new"] + ["unchanged"] * 5
    assert made[0].path.read_bytes() == CONTENT
    assert complete_copy(made[0].path, verify=True) is not None
    assert len(server.downloads()) == 4
    assert left_over(tmp_path) == []


PROCESS = """
import sys
from pathlib import Path
from hasten.cases.fetch import DownloadLimits, fetch
print(fetch(sys.argv[1], Path(sys.argv[2]), limits=DownloadLimits(stall_s=60, waits_s=(0.01,) * 4)).how)
"""


def test_two_processes_end_with_one_file(server: Served, tmp_path: Path) -> None:
    both = [Program("-c", PROCESS, f"{server.url}/set/a.nii.gz", str(tmp_path)) for _ in range(2)]
    said = sorted(process.communicate(timeout=600)[0].strip() for process in both)
    assert said == ["new", "unchanged"]
    assert complete_copy(tmp_path / local_name(f"{server.url}/set/a.nii.gz"), verify=True) is not None


def test_no_secret_is_told(server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="hasten")
    url = f"http://user:hunter2@127.0.0.1:{server.port}/set/a.nii.gz?X-Amz-Signature=hunter2&X-Amz-Date=1"
    server.truncate = 1
    path = fetch(url, tmp_path, limits=PATIENT).path
    # Signed again it is the same file.
    assert fetch(url.replace("Date=1", "Date=2"), tmp_path, limits=PATIENT) == Fetched(
        path=path, how="unchanged", size=len(CONTENT)
    )
    server.fail = 1 << 30
    with pytest.raises(Unreachable) as failed:
        fetch(url.replace("a.nii", "b.nii"), tmp_path, limits=PATIENT)
    server.fail_status = 404
    with pytest.raises(Missing) as missing:
        fetch(url.replace("a.nii", "b.nii"), tmp_path, limits=PATIENT)
    traces = [*traceback.format_exception(failed.value), *traceback.format_exception(missing.value)]
    messages = [caplog.text, "".join(traces), *(str(each) for each in tmp_path.rglob("*"))]
    messages += [each.read_text() for each in tmp_path.rglob("*.fetched")]
    assert not [text for text in messages if "hunter2" in text or "user:" in text]


@pytest.mark.parametrize("fault", ["none", "fail", "truncate", "stall"])
def test_s3(bucket: Served, tmp_path: Path, fault: str) -> None:
    if fault != "none":
        setattr(bucket, fault, 2)
    limits = HASTY if fault == "stall" else PATIENT
    limits = DownloadLimits(stall_s=limits.stall_s, waits_s=limits.waits_s, chunk=1_000_000)
    made = fetch("s3://set/a.nii.gz", tmp_path, limits=limits)
    assert made.path == tmp_path / "s3/set/a.nii.gz"
    assert made.path.read_bytes() == CONTENT
    assert fetch("s3://set/a.nii.gz", tmp_path, limits=PATIENT).how == "unchanged"
    bucket.files["/set/a.nii.gz"] = OTHER
    assert fetch("s3://set/a.nii.gz", tmp_path, limits=PATIENT).path.read_bytes() == OTHER
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]


def test_other_file_systems(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/fetch-test/a.nii", CONTENT)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.nii").write_bytes(CONTENT)
    for url in (
        "memory://fetch-test/a.nii",
        f"file://{tmp_path}/there/a.nii",
    ):
        made = fetch(url, tmp_path / "copy", limits=DownloadLimits(chunk=100_000))
        assert (made.how, made.path.read_bytes()) == ("new", CONTENT)
        assert made.path.name == "a.nii"
        assert fetch(url, tmp_path / "copy").how == "unchanged"
    memory.pipe_file("/fetch-test/a.nii", OTHER)
    assert fetch("memory://fetch-test/a.nii", tmp_path / "copy").path.read_bytes() == OTHER
    with pytest.raises(Missing, match="it is a folder"):
        fetch("memory://fetch-test", tmp_path)
    memory.rm("/fetch-test", recursive=True)
    with pytest.raises(ValueError, match=r"^nosuch://a/b: can't be opened \(Protocol not known"):
        fetch("nosuch://a/b", tmp_path)


def test_without_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ValueError, match=r"^https://host/a: is remote; install .*hasten\[remote\]"):
        fetch("https://host/a?key=1", tmp_path)


def test_a_wish_to_stop_ends_a_wait(server: Served, tmp_path: Path) -> None:
    filesystems = RemoteFilesystems(60)
    server.stall = 1
    errors: list[BaseException] = []

    def work() -> None:
        try:
            get(server, tmp_path, filesystems=filesystems)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    filesystems.stop.set()
    thread.join(30)
    assert [type(error).__name__ for error in errors] == ["TransferStopped"]


@given(st.integers(1, 1 << 30), st.integers(0, 100))
def test_chunks_shrink_to_a_floor(largest: int, attempt: int) -> None:
    chunk = chunk_of(largest, attempt)
    assert 1 <= chunk <= largest
    assert chunk_of(largest, attempt + 1) <= chunk


@pytest.mark.parametrize("length", [True, False])
def test_a_server_that_drips(server: Served, tmp_path: Path, length: bool) -> None:
    server.drip, server.length = True, length
    with pytest.raises(Unreachable, match=r"after 2 attempts \(only \d+ bytes came in [\d.]+ s\)"):
        get(server, tmp_path, DownloadLimits(stall_s=0.2, least_bytes=1000, waits_s=(0.001,)))


def test_a_file_without_a_size_has_a_limit(server: Served, tmp_path: Path) -> None:
    server.length = False
    with pytest.raises(ValueError, match=r"a\.nii\.gz: has .* or more, and 100 B at most are taken"):
        get(server, tmp_path, DownloadLimits(largest_unsized=100, chunk=64))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_that_is_too_small_is_seen_before_the_download(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: SimpleNamespace(free=len(CONTENT) - 1))
    with pytest.raises(ValueError, match=rf"a\.nii\.gz: needs .*{tmp_path}/.* .* free; .*HASTEN_CACHE"):
        get(server, tmp_path)
    assert server.downloads() == []
