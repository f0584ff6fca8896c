from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from monai.apps.datasets import DecathlonDataset

from hasten.cases.public import HOME, PUBLIC, data_home, download
from hasten.cases.remote import Downloader
from hasten.cases.sources import load_case_set
from hasten.phantoms.organs import write_phantoms
from tests.cases.servers import Served

FOLDER = "Task09_Spleen"


def tar_of(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        for info in more:
            file.addfile(info)
    return path


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of the layout of the Decathlon's, of two tiny cases."""
    folder = tmp_path_factory.mktemp("made") / FOLDER
    write_phantoms(folder, num_cases=2, shape=(8, 24, 24))
    files = {f"{FOLDER}/{p.relative_to(folder)}": p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return tar_of(folder.parent / "set.tar", files).read_bytes()


@pytest.fixture
def server(server: Served, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Serves the archive of the spleen that `download` fetches."""
    monkeypatch.setattr(Downloader, "waits_s", (0.001,) * 3)
    monkeypatch.setitem(DecathlonDataset.resource, FOLDER, f"{server.url}/set.tar")
    monkeypatch.setitem(DecathlonDataset.md5, FOLDER, hashlib.md5(archive).hexdigest())
    server.files["/set.tar"] = archive
    return server


def test_a_set_is_fetched_checked_and_unpacked_once(server: Served, tmp_path: Path) -> None:
    folder = download(PUBLIC["spleen"], tmp_path)
    assert folder == tmp_path / FOLDER
    assert len(load_case_set(folder).cases) == 2
    assert not list((tmp_path / ".archives").glob("*.tar")), "the archive takes as much room again"
    asked = len(server.requests)
    assert download(PUBLIC["spleen"], tmp_path) == folder
    assert len(server.requests) == asked


def test_a_server_that_keeps_truncating_leaves_no_set(server: Served, tmp_path: Path) -> None:
    server.truncate = 1000
    with pytest.raises(ValueError, match="can't be fetched after 4 attempts"):
        download(PUBLIC["spleen"], tmp_path)
    assert not (tmp_path / FOLDER).exists()
    server.truncate = 0
    assert download(PUBLIC["spleen"], tmp_path).is_dir()


def test_a_wrong_hash_is_refused_and_removed(server: Served, archive: bytes, tmp_path: Path) -> None:
    server.files["/set.tar"] = archive + b"more"
    with pytest.raises(ValueError, match=r"set\.tar: has the MD5 sum [0-9a-f]{32}, not [0-9a-f]{32}, and was removed"):
        download(PUBLIC["spleen"], tmp_path)
    assert not (tmp_path / FOLDER).exists()
    assert not list((tmp_path / ".archives").glob("*.tar"))
    server.files["/set.tar"] = archive
    assert download(PUBLIC["spleen"], tmp_path).is_dir()


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../../evil"),
        tarfile.TarInfo(f"{FOLDER}/../../evil"),
        link(f"{FOLDER}/away", "../../../etc"),
        link(f"{FOLDER}/absolute", "/etc/passwd"),
        link(f"{FOLDER}/hard", "../../outside", tarfile.LNKTYPE),
        link(f"{FOLDER}/device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: member.name,
)
def test_an_archive_with_a_path_outside_its_folder(
    server: Served, tmp_path: Path, member: tarfile.TarInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tar_of(tmp_path / "made.tar", {f"{FOLDER}/dataset.json": b"{}"}, member).read_bytes()
    server.files["/set.tar"] = bad
    monkeypatch.setitem(DecathlonDataset.md5, FOLDER, hashlib.md5(bad).hexdigest())
    with pytest.raises(ValueError, match=r"set\.tar: is not unpacked"):
        download(PUBLIC["spleen"], tmp_path / "home")
    assert {path.name for path in (tmp_path / "home").iterdir()} == {".archives"}
    assert not (tmp_path / "evil").exists()


def test_what_is_there_is_never_touched(tmp_path: Path) -> None:
    mine = tmp_path / FOLDER / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert download(PUBLIC["spleen"], tmp_path) == mine.parent
    assert mine.read_text() == "mine"


def test_a_set_without_an_archive_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"membrane: .*no archive .* register at its page"):
        download(PUBLIC["membrane"], tmp_path)


def test_the_home_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    assert data_home() == tmp_path
    monkeypatch.delenv(HOME)
    assert data_home() == Path.home() / "hasten-data"
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="can't be written"):
        download(PUBLIC["spleen"], tmp_path / "file")


def test_monai_names_every_archive() -> None:
    fetched = {each.folder for each in PUBLIC.values() if not each.by_hand}
    assert fetched == DecathlonDataset.resource.keys() == DecathlonDataset.md5.keys()
