"""Archives that are damaged or made to write outside their folder: of a public data set, and as `zip://` and `tar://`."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.trial.base import plan_args
from benchmarks.trial.judge import Ended, Expect
from benchmarks.trial.remote import dataset_json, impatient, served_set
from benchmarks.trial.run import Box, Command, Trial
from benchmarks.trial.server import serve

TOP = "Task09_Spleen"
Members = list[tuple[Any, bytes]]
Build = Callable[[dict[str, bytes]], bytes]


def _zip(files: dict[str, bytes], more: Members | None = None, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, data in [*files.items(), *(more or [])]:
            archive.writestr(name, data)
    return out.getvalue()


def _tar(files: dict[str, bytes], more: list[tarfile.TarInfo] | None = None, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more or []:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return out.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size
    return member


def _zip_link(name: str, mode: int) -> Any:
    member = zipfile.ZipInfo(name)
    member.create_system = 3
    member.external_attr = mode << 16
    return member


def _encrypted(files: dict[str, bytes]) -> bytes:
    """With the flag of encryption on every member."""
    data = bytearray(_zip(files))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(mark)
        while start >= 0:
            data[start + at] |= 1
            start = data.find(mark, start + 4)
    return bytes(data)


def _flip(data: bytes, at: float) -> bytes:
    spoilt = bytearray(data)
    spoilt[int(len(data) * at)] ^= 0x55
    return bytes(spoilt)


_OUT = (
    "../../escaped.txt",
    "/tmp/hasten-escaped.txt",
    "..\\..\\escaped.txt",
    f"{TOP}/../../escaped.txt",
    "C:/escaped.txt",
)
BUILDS: dict[str, tuple[Build, Expect]] = {
    "zip/sound": (_zip, "accepted"),
    "tar/sound": (_tar, "accepted"),
    "tar/uncompressed": (partial(_tar, mode="w"), "accepted"),
    "tar/xz": (partial(_tar, mode="w:xz"), "accepted"),
    "zip/encrypted": (_encrypted, "refused"),
    "zip/bomb": (lambda files: _zip(files, [(f"{TOP}/bomb.nii", bytes(1 << 28))]), "either"),
    "zip/cut-at-half": (lambda files: (data := _zip(files))[: len(data) // 2], "refused"),
    "tar/cut-at-half": (lambda files: (data := _tar(files))[: len(data) // 2], "refused"),
    "tar/cut-before-end": (lambda files: _tar(files)[:-20], "refused"),
    "zip/flip": (lambda files: _flip(_zip(files), 0.4), "refused"),
    "tar/flip": (lambda files: _flip(_tar(files), 0.4), "refused"),
    "empty": (lambda files: b"", "refused"),
    "web-page": (lambda files: b"<html>sign in</html>", "refused"),
    "random": (lambda files: bytes(range(256)) * 40, "refused"),
    "zip/no-members": (lambda files: _zip({}), "refused"),
    "tar/no-members": (lambda files: _tar({}), "refused"),
    "zip/other-folder": (lambda files: _zip({name.replace(TOP, "other"): data for name, data in files.items()}),
        "refused"),
    "zip/unknown-method": (lambda files: _zip(files, kind=zipfile.ZIP_STORED).replace(b"\0\0\0\0", b"\0\0\x63\0", 1),
        "either"),
    "zip/link": (lambda files: _zip(files, [(_zip_link(f"{TOP}/link", 0o120777), b"/etc/passwd")]), "refused"),
    "zip/device": (lambda files: _zip(files, [(_zip_link(f"{TOP}/device", 0o060777), b"")]), "refused"),
    "tar/absolute-link": (lambda files: _tar(files, [_member(f"{TOP}/l", tarfile.SYMTYPE, "/etc/passwd")]), "refused"),
    "tar/link-out": (lambda files: _tar(files, [_member(f"{TOP}/l", tarfile.SYMTYPE, "../../../x")]), "refused"),
    "tar/hard-link-out": (lambda files: _tar(files, [_member(f"{TOP}/l", tarfile.LNKTYPE, "../../../etc/passwd")]),
        "refused"),
    "tar/device": (lambda files: _tar(files, [_member(f"{TOP}/d", tarfile.CHRTYPE)]), "refused"),
    "tar/fifo": (lambda files: _tar(files, [_member(f"{TOP}/f", tarfile.FIFOTYPE)]), "refused"),
    "tar/link-then-through": (
        lambda files: _tar(files, [_member(f"{TOP}/l", tarfile.SYMTYPE, "/tmp"), _member(f"{TOP}/l/hasten-escaped.txt",
            size=3)]),
        "refused",
    ),
    "tar/huge-size": (lambda files: _tar(files, mode="w")[:-2048] + _member("x", size=10**13).tobuf(), "refused"),
    "tar/long-name": (lambda files: _tar({**files, f"{TOP}/{'x' * 300}": b""}), "refused"),
    "zip/long-name": (lambda files: _zip({**files, f"{TOP}/{'x' * 300}": b""}), "refused"),
    "zip/escape-codes": (lambda files: _zip({**files, "../\x1b[31mred": b""}), "refused"),
    "zip/repeated-name": (lambda files: _zip(files, [(next(iter(files)), b"other")]), "either"),
    "zip/folder-and-file": (lambda files: _zip({**files, f"{TOP}/a": b"", f"{TOP}/a/b": b""}), "refused"),
    **{f"zip/{name!r}": ((lambda files, name=name: _zip({**files, name: b"x"})), "refused") for name in _OUT},
    **{f"tar/{name!r}": ((lambda files, name=name: _tar({**files, name: b"x"})), "refused") for name in _OUT},
}  # fmt: skip


def _files(box: Box) -> dict[str, bytes]:
    files, cases = served_set(box)
    files["/set/dataset.json"] = dataset_json(cases)
    return {name.replace("/set", TOP): data for name, data in sorted(files.items())}


def _escaped(box: Box, _: Ended) -> str:
    from pathlib import Path

    outside = [Path("/tmp/hasten-escaped.txt"), *(box.folder.parent.rglob("escaped.txt"))]
    there = [path for path in outside if path.exists()]
    for path in there:
        path.unlink()
    return f"wrote outside its folder: {there[0]}" if there else ""


def _downloaded(build: Build, expect: Expect, sum_holds: bool, box: Box) -> Command:
    """`hasten recipe data`, with a public set whose archive this machine serves."""
    data = build(_files(box))
    address = serve({"/archive": data})
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest() if sum_holds else "0" * 32

    def publish() -> None:
        from hasten.cases import public

        impatient()
        public.PUBLIC["spleen"] = replace(public.PUBLIC["spleen"], url=f"{address}/archive", md5=digest)  # type: ignore[index]

    return Command(
        args=["recipe", "data", "spleen", "--to", "data"], names=["archive", TOP], expect=expect, before=publish,
        check=partial(_escaped, box), may_change=("data",),
    )  # fmt: skip


def _chained(build: Build, expect: Expect, kind: str, box: Box) -> Command:
    """The archive as a source: `zip://TOP/dataset.json::file:///ARCHIVE`."""
    (box.folder / f"archive.{kind}").write_bytes(build(_files(box)))
    source = f"{kind}://{TOP}/dataset.json::file://{box.folder}/archive.{kind}"
    return Command(
        args=plan_args(source), names=["archive", "dataset.json"], expect="either" if expect == "accepted" else expect,
        before=impatient, check=partial(_escaped, box), seconds=45,
    )  # fmt: skip


def trials() -> Iterator[Trial]:
    for name, (build, expect) in BUILDS.items():
        yield Trial("archives", f"download/{name}", partial(_downloaded, build, expect, True))
        kind = name.partition("/")[0]
        if kind in ("zip", "tar"):
            # Members beside the list are not read at all.
            read = (
                expect
                if name.rpartition("/")[2] in ("encrypted", "cut-at-half", "no-members", "other-folder")
                else "either"
            )
            yield Trial("archives", f"chained/{name}", partial(_chained, build, read, kind))
    yield Trial("archives", "download/other-checksum", partial(_downloaded, _zip, "refused", False))
