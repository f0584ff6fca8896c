from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from hasten.cases import unpack as module
from hasten.cases.unpack import unpack

FILES = {"Set/dataset.json": b"{}", "Set/imagesTr/a.nii.gz": os.urandom(5000)}


def tar_of(path: Path, files: dict[str, bytes], mode: str = "w", *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
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


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_the_folder_and_nothing_else_is_unpacked(tmp_path: Path, ending: str) -> None:
    files = {**FILES, "Set/imagesTr/._a.nii.gz": b"x", "__MACOSX/Set/b": b"x", "Set/.DS_Store": b"x", "read.me": b"x"}
    archive = tmp_path / f"set.{ending}"
    tar_of(archive, files, "w:gz" if ending == "tar.gz" else "w")
    unpack(archive, tmp_path / "to" / "mine", top="Set")
    results = {
        str(p.relative_to(tmp_path / "to" / "mine")): p.read_bytes()
        for p in (tmp_path / "to" / "mine").rglob("*")
        if p.is_file()
    }
    assert results == {name.removeprefix("Set/"): content for name, content in FILES.items()}
    assert left(tmp_path / "to") == {"mine"}


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "Set/../../evil", "Set\\..\\evil", "C:/evil"])
def test_a_name_that_leads_out_unpacks_nothing(tmp_path: Path, name: str) -> None:
    archive = tar_of(tmp_path / "bad.archive", {**FILES, name: b"evil"})
    with pytest.raises(ValueError, match=r"bad\.archive: its member .* is not unpacked, .*else"):
        unpack(archive, tmp_path / "to" / "Set", top="Set")
    assert left(tmp_path / "to") == set()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "member",
    [
        link("Set/away", "../../../etc"),
        link("Set/absolute", "/etc/passwd"),
        link("Set/hard", "../../outside", tarfile.LNKTYPE),
        link("Set/device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: member.name,
)
def test_a_link_or_device_that_leads_out_unpacks_nothing(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = tar_of(tmp_path / "bad.tar", FILES, "w", member)
    with pytest.raises(ValueError, match="is not unpacked"):
        unpack(archive, tmp_path / "to" / "Set", top="Set")
    assert left(tmp_path / "to") == set()


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_cut_off_archive(tmp_path: Path, ending: str) -> None:
    archive = tmp_path / f"set.{ending}"
    tar_of(archive, FILES, "w:gz" if ending == "tar.gz" else "w")
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(ValueError, match="is damaged or cut off"):
        unpack(archive, tmp_path / "to" / "Set", top="Set")
    assert left(tmp_path / "to") == set()


def test_a_flipped_byte_in_a_compressed_archive(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "set.tar.gz", FILES, "w:gz")
    data = bytearray(archive.read_bytes())
    data[-8] ^= 1  # of the checksum
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged or cut off"):
        unpack(archive, tmp_path / "to" / "Set", top="Set")
    assert left(tmp_path / "to") == set()


def test_something_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "page.tar").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(ValueError, match=r"page\.tar: is damaged"):
        unpack(tmp_path / "page.tar", tmp_path / "to" / "Set", top="Set")


def test_another_archive_than_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no folder Other, but Set"):
        unpack(tar_of(tmp_path / "set.tar", FILES), tmp_path / "to" / "Set", top="Other")
    assert left(tmp_path / "to") == set()


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("", (), {"free": 100})())
    with pytest.raises(ValueError, match=r"needs 4\.88 KiB unpacked, but .* has 100 B free"):
        unpack(tar_of(tmp_path / "set.tar", FILES), tmp_path / "to" / "Set", top="Set")
