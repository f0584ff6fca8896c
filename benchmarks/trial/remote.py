"""Remote sources: servers that fail, lie or are slow, and remote lists that name files of this machine.

The limits with a silent server is shortened, so that a trial takes seconds: that it ends is what is tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trial.base import CASES, entries, plan_args
from benchmarks.trial.judge import Ended, Expect
from benchmarks.trial.run import Box, Command, Trial
from benchmarks.trial.server import REPLIES, Reply, serve

SECRET = b"the secret of this machine"


def impatient() -> None:
    from hasten.cases.fetch import DownloadLimits

    DownloadLimits.__init__.__kwdefaults__.update(stall_s=2.0, waits_s=(0.1, 0.1, 0.1, 0.1))


def served_set(box: Box) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files of a remote data set by path, and the cases of its dataset.json, which is to be added."""
    files: dict[str, bytes] = {}
    cases: list[dict[str, Any]] = []
    for case in entries(box.base / "volumes"):
        for kind in ("image", "label"):
            files[f"/set/{kind}s/{case['id']}.nii.gz"] = Path(case[kind]).read_bytes()
        cases.append({"image": f"images/{case['id']}.nii.gz", "label": f"labels/{case['id']}.nii.gz"})
    return files, cases


def dataset_json(cases: Any) -> bytes:
    content = {"labels": {"0": "background", "1": "spleen"}, "modality": {"0": "CT"}, "training": cases}
    return json.dumps(content).encode()


def _reply(reply: Reply, at: str, expect: Expect, box: Box) -> Command:
    files, cases = served_set(box)
    files["/set/dataset.json"] = dataset_json(cases)
    address = serve(files, {at: reply})
    names = [at.rpartition("/")[2], at, address]
    return Command(
        args=plan_args(f"{address}/set/dataset.json"), names=names, expect=expect, before=impatient, seconds=45
    )


_ESCAPES = (
    "file:///SECRET", "file://localhost/SECRET", "local:///SECRET", "/SECRET", "../../../../../../SECRET",
    "images/../../../../../SECRET", "%2e%2e/%2e%2e/SECRET", "..%2f..%2fSECRET", "zip://a.nii.gz::file:///SECRET",
    "tar://a.nii.gz::file:///SECRET", "simplecache::file:///SECRET", "filecache::file:///SECRET",
    "blockcache::file:///SECRET", "dir:///SECRET", "dir://x::file:///SECRET", "reference:///SECRET",
    "github://org:repo@main/a.nii.gz", "ftp://127.0.0.1:1/a.nii.gz", "sftp://127.0.0.1:1/a.nii.gz",
    "ssh://127.0.0.1/a.nii.gz", "smb://127.0.0.1/share/a.nii.gz", "memory://a.nii.gz",
        "data:application/gzip;base64,AAAA",
    "jupyter://127.0.0.1:1/a.nii.gz", "git://SECRET:main@a.nii.gz", "hdfs://127.0.0.1:1/a.nii.gz",
        "webhdfs://127.0.0.1:1/a.nii.gz",
    "libarchive://a::file:///SECRET", "s3://127.0.0.1/a.nii.gz", "FILE:///SECRET", "gopher://127.0.0.1:1/a.nii.gz",
    "javascript:alert(1)", "http://127.0.0.1:1/a.nii.gz", "http://127.0.0.1:99999/a.nii.gz", "http:///a.nii.gz",
    "http://[::1/a.nii.gz", "https://user:pass word@127.0.0.1:1/a.nii.gz", "a\0b.nii.gz", "~/SECRET", "$HOME/SECRET",
    "\\\\host\\share\\a.nii.gz", "C:\\a.nii.gz", ".hidden/../../a.nii.gz", "a" * 6000 + ".nii.gz", "\x1b[31mred.nii.gz",
    "images/phantom_001.nii.gz?x=../../../SECRET", "images/phantom_001.nii.gz#frag", "images//phantom_001.nii.gz/",
    "http://127.0.0.1:1/{a,b}[1-3]*.nii.gz",
)  # fmt: skip


def _secret_copied(box: Box, _: Ended) -> str:
    for name in ("cache", "out"):
        for path in (box.folder / name).rglob("*"):
            if path.is_file() and SECRET in path.read_bytes():
                return f"a local file that the remote list named was copied to {path.name}"
    return ""


def _entry(name: str, key: str, box: Box) -> Command:
    """One case of a remote list names something else than a file beside the list."""
    secret = box.folder / "secret.nii.gz"
    secret.write_bytes(SECRET)
    name = name.replace("/SECRET", str(secret)).replace("SECRET", str(secret).lstrip("/"))
    files, cases = served_set(box)
    cases[1][key] = name
    files["/set/dataset.json"] = dataset_json(cases)
    address = serve(files)
    names = ["dataset.json", "training[1]", name, name[-40:], name.partition("::")[0], "127.0.0.1"]
    if "://" in name:
        names.append(name.partition("://")[0] + "://")  # what looks like a login is not shown
    sound = name.endswith(("#frag", "/"))
    return Command(
        args=plan_args(f"{address}/set/dataset.json"), names=names, expect="either" if sound else "refused",
        before=impatient, check=partial(_secret_copied, box), seconds=45,
    )  # fmt: skip


SOURCES = (
    "http://127.0.0.1:1/dataset.json", "http://127.0.0.1:1/", "https://127.0.0.1:1/set",
        "ftp://127.0.0.1:1/dataset.json",
    "sftp://127.0.0.1:1/dataset.json", "github://org:repo@main/dataset.json", "github://dataset.json",
        "gopher://x/dataset.json",
    "http:///dataset.json", "http://[/dataset.json", "http://127.0.0.1:99999/dataset.json", "://dataset.json",
    "http://user:secret@127.0.0.1:1/dataset.json", "http://127.0.0.1:1/dataset.json?token=secret", "zip://dataset.json",
    "zip://dataset.json::nowhere.zip", "file:///nowhere/dataset.json", "file://", "s3://",
        "memory://nothing/dataset.json",
    "dir://nowhere/dataset.json", "simplecache::http://127.0.0.1:1/dataset.json", "hdfs://127.0.0.1:1/dataset.json",
    "http://127.0.0.1:1/dataset.txt", "http://127.0.0.1:1/run.yaml", "a::b::c://d", "reference://x/dataset.json",
)  # fmt: skip


def _source(source: str, box: Box) -> Command:
    def told_secret(ended: Ended) -> str:
        return "a login or token is shown" if "secret" in ended.text else ""

    names = [
        source,
        source.partition("?")[0],
        source.replace("user:secret@", ""),
        source.rpartition("/")[2] or source.rstrip("/"),
    ]
    args = plan_args(source)
    return Command(args=args, names=names, before=impatient, check=told_secret, seconds=45)


def _list_of_web(kind: str, box: Box) -> Command:
    """A local list whose cases are on a server that is gone."""
    cases = [
        {"image": f"http://127.0.0.1:1/{case}.nii.gz", "label": f"http://127.0.0.1:1/{case}-l.nii.gz"} for case in CASES
    ]
    if kind == "csv":
        rows = "".join(f"{case['image']},{case['label']}\n" for case in cases)
        (box.folder / "list.csv").write_text("image,label\n" + rows)
    else:
        (box.folder / "list.json").write_text(json.dumps({"labels": {"0": "b", "1": "s"}, "cases": cases}))
    return Command(args=plan_args(f"list.{kind}"), names=["127.0.0.1:1"], before=impatient, seconds=45)


def _hash(value: Any, expect: Expect, box: Box) -> Command:
    files, cases = served_set(box)
    cases[1]["sha256"] = value
    files["/set/dataset.json"] = dataset_json(cases)
    address = serve(files)
    names = ["sha256", "SHA-256", CASES[1]]
    return Command(args=plan_args(f"{address}/set/dataset.json"), names=names, expect=expect, before=impatient)


HASHES: dict[str, tuple[Any, Expect]] = {
    "wrong": ({"image": "0" * 64, "label": None}, "refused"), "short": ({"image": "abc"}, "refused"),
    "number": (5, "refused"), "list": ([1], "refused"), "too-many": ({"image": ["0" * 64] * 2}, "refused"),
    "text": ("0" * 64, "refused"), "null": (None, "accepted"), "nan": (float("nan"), "refused"),
    "other-key": ({"images": "0" * 64}, "refused"),
}  # fmt: skip


def _gone_after_copy(box: Box) -> Command:
    """A second run while the server fails: the copy from before is used, with a warning."""
    files, cases = served_set(box)
    files["/set/dataset.json"] = dataset_json(cases)
    flag = box.folder / "gone"

    def maybe(handler: Any) -> None:
        if flag.exists():
            handler.send_error(503)
        else:
            handler.answer(files[handler.path])

    address = serve({}, dict.fromkeys(files, maybe))
    box.start(plan_args(f"{address}/set/dataset.json")).wait()
    (box.folder / "plan.json").unlink()
    flag.write_text("")
    args = plan_args(f"{address}/set/dataset.json")
    return Command(args=args, names=["copy", "copies"], expect="warned", before=impatient, may_change=("cache",))


def trials() -> Iterator[Trial]:
    image = f"/set/images/{CASES[1]}.nii.gz"
    for name, reply in REPLIES.items():
        # Without a length, what comes is the file.
        sound: Expect = "refused"
        yield Trial("remote", f"list/{name}", partial(_reply, reply, "/set/dataset.json", sound))
        yield Trial("remote", f"image/{name}", partial(_reply, reply, image, sound))
    for name in _ESCAPES:
        for key in ("image", "label"):
            yield Trial("remote", f"{key}={name[:60]!r}", partial(_entry, name, key))
    for source in SOURCES:
        yield Trial("remote", f"source={source}", partial(_source, source))
    for kind in ("csv", "json"):
        yield Trial("remote", f"local-{kind}-of-a-server-that-is-gone", partial(_list_of_web, kind))
    for name, (value, expect) in HASHES.items():
        yield Trial("remote", f"sha256/{name}", partial(_hash, value, expect))
    yield Trial("remote", "gone-after-copy", _gone_after_copy)
