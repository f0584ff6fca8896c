"""Lists of cases: dataset.json, JSON and CSV lists, nnU-Net folders with splits_final.json, folders of pairs."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trial.base import CASES, copied, entries, image_of, label_of, plan_args, train_args
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

_DIGITS = "9" * 5000
DEEP = "[" * 100_000 + "]" * 100_000
RAW: dict[str, tuple[bytes, Expect]] = {
    "empty": (b"", "refused"),
    "blank": (b" \n\n", "refused"),
    "no-json": (b"cases: none", "refused"),
    "null": (b"null", "refused"),
    "number": (b"5", "refused"),
    "text": (b'"imagesTr"', "refused"),
    "true": (b"true", "refused"),
    "no-list": (b"[]", "refused"),
    "no-object": (b"{}", "refused"),
    "list-of-lists": (b"[[], []]", "refused"),
    "list-of-null": (b"[null]", "refused"),
    "cut": (b'{"training": [{"image": "a.nii.gz", ', "refused"),
    "latin-1": (b'{"name": "Gr\xf6\xdfe", "training": []}', "refused"),
    "utf-16": ('{"training": []}'.encode("utf-16"), "refused"),
    "zeros": (bytes(200), "refused"),
    "deep": (DEEP.encode(), "refused"),
    "deep-objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "refused"),
    "trailing-comma": (b'{"training": [],}', "refused"),
    "comment": (b'// my list\n{"training": []}', "refused"),
    "single-quotes": (b"{'training': []}", "refused"),
    "two-documents": (b'{"training": []}{"training": []}', "refused"),
    "5000-digits": (f'{{"numTraining": {_DIGITS}, "training": []}}'.encode(), "refused"),
    "web-page": (b"<html>404</html>", "refused"),
    "lone-surrogate": (b'{"training": [{"image": "\\ud800", "label": "\\udfff"}]}', "refused"),
    "zip-file": (b"PK\x03\x04" + bytes(100), "refused"),
}


def _raw(data: bytes, name: str, expect: Expect, box: Box) -> Command:
    (box.folder / name).write_bytes(data)
    return Command(args=plan_args(name), names=[name], expect=expect)


# What becomes of the case of a sound list that is changed, named by its key.
ENTRY: dict[str, tuple[Any, Expect]] = {
    "missing": ("", "refused"),
    "null": (None, "refused"),
    "number": (5, "refused"),
    "nan": (float("nan"), "refused"),
    "list-of-numbers": ([1, 2], "refused"),
    "no-list": ([], "refused"),
    "object": ({"path": "a"}, "refused"),
    "blank": (" ", "refused"),
    "nowhere": ("nowhere.nii.gz", "refused"),
    "traversal": ("../" * 20 + "etc/passwd", "refused"),
    "absolute": ("/etc/passwd", "refused"),
    "folder": (".", "refused"),
    "device": ("/dev/zero", "refused"),
    "terminal": ("/dev/stdin", "refused"),
    "nul-byte": ("a\0b.nii.gz", "refused"),
    "long": ("a" * 5000 + ".nii.gz", "refused"),
    "escape-codes": ("\x1b[2Jcls.nii.gz", "refused"),
    "file-url": ("file:///etc/passwd", "refused"),
    "home": ("~/nothing.nii.gz", "refused"),
    "variable": ("$HOME/nothing.nii.gz", "refused"),
    "glob": ("*.nii.gz", "refused"),
    "backslashes": ("imagesTr\\phantom_001.nii.gz", "refused"),
    "other-kind": ("list.docx", "refused"),
    "deep": (None, "refused"),
}
_IDS: dict[str, tuple[Any, Expect]] = {
    "slash": ("a/b", "refused"), "traversal": ("../../evil", "refused"), "backslash": ("a\\b", "refused"),
    "twice": (CASES[0], "refused"), "number": (7, "either"), "null": (None, "either"), "list": ([1], "refused"),
    "object": ({"a": 1}, "refused"), "dots": ("..", "refused"), "dot": (".", "refused"), "nul": ("a\0b", "refused"),
    "long": ("a" * 1000, "refused"), "escape-codes": ("\x1b[31mred", "either"), "blank": ("  ", "refused"),
    "newline": ("a\nb", "either"), "true": (True, "either"), "5000-digits": (10**4000, "either"),
    "case-of-letters": (CASES[0].upper(), "either"), "nan": (float("nan"), "either"),
}  # fmt: skip


def _entry(kind: str, key: str, value: Any, expect: Expect, box: Box) -> Command:
    cases: list[dict[str, Any]] = list(entries(box.base / "volumes"))
    if value == "":
        del cases[1][key]
    else:
        cases[1][key] = value
    names = [str(value), "cases[1]", "training[1]", key, CASES[1], "list.json", "dataset.json"]
    return Command(args=plan_args(_written(box, kind, cases)), names=names, expect=expect)


def _written(box: Box, kind: str, cases: list[dict[str, Any]]) -> str:
    labels = {"0": "background", "1": "spleen"}
    if kind == "decathlon":
        content = {"name": "n", "modality": {"0": "CT"}, "labels": labels, "training": cases}
        (box.folder / "dataset.json").write_text(json.dumps(content))
        return "dataset.json"
    (box.folder / "list.json").write_text(json.dumps({"labels": labels, "cases": cases}))
    return "list.json"


TOP: dict[str, tuple[Any, Expect]] = {
    "null": (None, "refused"), "number": (5, "refused"), "text": ("x", "refused"), "no-list": ([], "refused"),
    "no-object": ({}, "refused"), "nan": (float("nan"), "refused"), "true": (True, "refused"),
    "list": ([[1]], "refused"), "missing": ("", "refused"), "huge": (10**4000, "refused"),
}  # fmt: skip
_SOUND = {
    ("decathlon", "modality", "text"), ("decathlon", "modality", "null"), ("decathlon", "modality", "missing"),
    ("decathlon", "modality", "no-object"), ("decathlon", "modality", "no-list"), ("decathlon", "name", "text"),
    ("decathlon", "name", "missing"), ("decathlon", "name", "null"), ("nnunet", "numTraining", "missing"),
    ("nnunet", "numTraining", "null"), ("nnunet", "channel_names", "text"), ("nnunet", "name", "text"),
    ("nnunet", "name", "missing"), ("nnunet", "name", "null"),
}  # fmt: skip


def _top(kind: str, key: str, value: Any, expect: Expect, box: Box) -> Command:
    data = copied(box, "volumes", "set") if kind == "decathlon" else _nnunet(box)
    path = data / "dataset.json"
    content = json.loads(path.read_text())
    if value == "":
        del content[key]
    else:
        content[key] = value
    path.write_text(
        json.dumps(content) if value != 10**4000 else json.dumps({**content, key: 0}).replace("0", _DIGITS, 1)
    )
    return Command(args=plan_args(data), names=[key, "dataset.json"], expect=expect)


def _nnunet(box: Box) -> Path:
    data = box.folder / "Dataset007_Spleen"
    for folder in ("imagesTr", "labelsTr"):
        (data / folder).mkdir(parents=True)
    for case in CASES:
        shutil.copy(image_of(box.base / "volumes", case), data / "imagesTr" / f"{case}_0000.nii.gz")
        shutil.copy(label_of(box.base / "volumes", case), data / "labelsTr" / f"{case}.nii.gz")
    content = {
        "channel_names": {"0": "CT"}, "labels": {"background": 0, "spleen": 1}, "numTraining": 4,
        "file_ending": ".nii.gz", "name": "spleen",
    }  # fmt: skip
    (data / "dataset.json").write_text(json.dumps(content))
    return data


def _move(data: Path, name: str, to: str) -> None:
    (data / name).rename(data / to)


_C = CASES[1]
FOLDERS: dict[str, tuple[Callable[[Path], object], Expect, tuple[str, ...]]] = {
    "no-label": (lambda d: (d / f"labelsTr/{_C}.nii.gz").unlink(), "refused", (_C,)),
    "no-image": (lambda d: (d / f"imagesTr/{_C}_0000.nii.gz").unlink(), "refused", (_C, "numTraining")),
    "gap-in-channels": (partial(_move, name=f"imagesTr/{_C}_0000.nii.gz", to=f"imagesTr/{_C}_0001.nii.gz"), "refused",
        (_C,)),
    "no-number": (partial(_move, name=f"imagesTr/{_C}_0000.nii.gz", to=f"imagesTr/{_C}.nii.gz"), "refused", (_C,)),
    "extra-channel": (lambda d: shutil.copy(d / f"imagesTr/{_C}_0000.nii.gz", d / f"imagesTr/{_C}_0001.nii.gz"),
        "refused", (_C,)),
    "no-labels-folder": (partial(_move, name="labelsTr", to="masks"), "refused", ("labelsTr",)),
    "no-images-folder": (partial(_move, name="imagesTr", to="images"), "refused", ("imagesTr",)),
    "labels-is-a-file": (lambda d: (shutil.rmtree(d / "labelsTr"), (d / "labelsTr").write_text("")), "refused",
        ("labelsTr",)),
    "empty-images": (lambda d: [file.unlink() for file in (d / "imagesTr").iterdir()], "refused", ("imagesTr",)),
    "mac-files": (lambda d: (d / f"imagesTr/._{_C}_0000.nii.gz").write_text("x"), "accepted", ()),
    "thumbs-db": (lambda d: (d / "imagesTr/Thumbs.db").write_text("x"), "accepted", ()),
    "other-ending": (lambda d: _move(d, f"imagesTr/{_C}_0000.nii.gz", f"imagesTr/{_C}_0000.NII.GZ"), "refused", (_C,
        "numTraining", ".NII")),
}  # fmt: skip


def _folder(change: Callable[[Path], object], expect: Expect, names: tuple[str, ...], box: Box) -> Command:
    data = _nnunet(box)
    change(data)
    return Command(args=plan_args(data), names=names, expect=expect)


_A, _B, _D = CASES[0], CASES[1], CASES[2]
SPLITS: dict[str, tuple[Any, Expect]] = {
    "both-sides": ([{"train": [_A, _B, _D], "val": [_B, CASES[3]]}], "refused"),
    "unknown-case": ([{"train": [_A, _B], "val": ["nobody"]}], "refused"),
    "no-validation": ([{"train": list(CASES), "val": []}], "refused"),
    "no-training": ([{"train": [], "val": list(CASES)}], "refused"),
    "left-out": ([{"train": [_A, _B], "val": [_D]}], "warned"),
    "twice": ([{"train": [_A, _A, _B], "val": [_D, CASES[3]]}], "accepted"),
    "no-folds": ([], "refused"),
    "no-list": ({"train": [_A], "val": [_B]}, "refused"),
    "fold-is-a-list": ([[_A], [_B]], "refused"),
    "fold-is-null": ([None], "refused"),
    "no-val": ([{"train": list(CASES)}], "refused"),
    "val-is-a-text": ([{"train": [_A, _B, _D], "val": CASES[3]}], "refused"),
    "numbers": ([{"train": [0, 1, 2], "val": [3]}], "refused"),
    "null-cases": ([{"train": [None], "val": [None]}], "refused"),
    "number": (5, "refused"),
    "deep": (DEEP, "refused"),
    "empty-file": ("", "refused"),
    "5000-digits": (f"[{_DIGITS}]", "refused"),
    "nan": ("[NaN]", "refused"),
}


def _split(content: Any, expect: Expect, box: Box) -> Command:
    data = _nnunet(box)
    text = content if isinstance(content, str) else json.dumps(content)
    (data / "splits_final.json").write_text(text)
    args = train_args(data, "data.split.by=nnunet", "data.split.fold=0")
    return Command(args=args, names=["splits_final.json"], expect=expect)


def _fold(fold: int, box: Box) -> Command:
    data = _nnunet(box)
    (data / "splits_final.json").write_text(json.dumps([{"train": list(CASES[:3]), "val": [CASES[3]]}]))
    args = plan_args(data, "data.split.by=nnunet", f"data.split.fold={fold}")
    return Command(args=args, names=["fold", "splits_final.json"])


def _csv(change: Callable[[str], bytes], expect: Expect, box: Box) -> Command:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "image", "label"])
    writer.writeheader()
    writer.writerows(entries(box.base / "volumes"))
    (box.folder / "labels.json").write_text('{"0": "background", "1": "spleen"}')
    (box.folder / "list.csv").write_bytes(change(text.getvalue()))
    return Command(args=plan_args("list.csv"), names=["list.csv"], expect=expect)


CSV: dict[str, tuple[Callable[[str], bytes], Expect]] = {
    "sound": (str.encode, "accepted"),
    "bom": (lambda text: b"\xef\xbb\xbf" + text.encode(), "accepted"),
    "empty": (lambda text: b"", "refused"),
    "header-only": (lambda text: b"id,image,label\n", "refused"),
    "no-header": (lambda text: text.partition("\n")[2].encode(), "refused"),
    "semicolons": (lambda text: text.replace(",", ";").encode(), "refused"),
    "tabs": (lambda text: text.replace(",", "\t").encode(), "refused"),
    "utf-16": (lambda text: text.encode("utf-16"), "refused"),
    "latin-1": (lambda text: (text + "ö,ä,ü\n").encode("latin-1"), "refused"),
    "nul-bytes": (lambda text: (text + "a,b\0,c\n").encode(), "refused"),
    "open-quote": (lambda text: (text + '"a,b,c\n').encode(), "refused"),
    "missing-field": (lambda text: (text + "a,b\n").encode(), "refused"),
    "extra-field": (lambda text: (text + "a,b,c,d\n").encode(), "refused"),
    "empty-image": (lambda text: (text + "a,,c\n").encode(), "refused"),
    "empty-label": (lambda text: (text + "a,b,\n").encode(), "refused"),
    "huge-field": (lambda text: (text + f"a,{'b' * 200_000},c\n").encode(), "refused"),
    "repeated-column": (lambda text: text.replace("id,image,label", "image,image,label").encode(), "refused"),
    "repeated-rows": (lambda text: (text + text.partition("\n")[2]).encode(), "refused"),
    "binary": (lambda text: bytes(range(256)), "refused"),
    "windows-lines": (lambda text: text.replace("\n", "\r\n").encode(), "accepted"),
    "old-mac-lines": (lambda text: text.replace("\r\n", "\r").encode(), "either"),
    "formula": (lambda text: (text + '"=cmd|calc",b,c\n').encode(), "refused"),
}


def _pairs(change: Callable[[Path], object], expect: Expect, names: tuple[str, ...], box: Box) -> Command:
    data = box.folder / "set"
    for folder, of in (("images", image_of), ("labels", label_of)):
        (data / folder).mkdir(parents=True)
        for case in CASES:
            shutil.copy(of(box.base / "volumes", case), data / folder / f"{case}.nii.gz")
    change(data)
    return Command(args=plan_args(data), names=names, expect=expect)


PAIRS: dict[str, tuple[Callable[[Path], object], Expect, tuple[str, ...]]] = {
    "sound": (lambda d: None, "accepted", ()),
    "no-label": (lambda d: (d / f"labels/{_B}.nii.gz").unlink(), "refused", (_B,)),
    "no-image": (lambda d: (d / f"images/{_B}.nii.gz").unlink(), "refused", (_B,)),
    "same-stem": (lambda d: shutil.copy(d / f"images/{_B}.nii.gz", d / f"images/{_B}.mha"), "refused", (_B,)),
    "no-files": (lambda d: [file.unlink() for file in d.rglob("*.gz")], "refused", ("set",)),
    "nothing": (lambda d: (shutil.rmtree(d), d.mkdir()), "refused", ("set",)),
    "one-case": (lambda d: [file.unlink() for file in d.rglob("*.gz") if _A not in file.name], "refused", ("set",
        "case")),
    "two-cases": (lambda d: [f.unlink() for f in d.rglob("*.gz") if f.name[:11] not in (_A, _B)], "accepted", ()),
    "labels-json-empty": (lambda d: (d / "labels.json").write_text(""), "refused", ("labels.json",)),
    "labels-json-list": (lambda d: (d / "labels.json").write_text("[1]"), "refused", ("labels.json",)),
    "labels-json-deep": (lambda d: (d / "labels.json").write_text(DEEP), "refused", ("labels.json",)),
    "labels-json-folder": (lambda d: (d / "labels.json").mkdir(), "either", ("labels.json",)),
    "label-folder-loop": (lambda d: (shutil.rmtree(d / "labels"), (d / "labels").symlink_to("labels")), "refused",
        ("labels", "set")),
    "Labels": (lambda d: (d / "labels").rename(d / "masks"), "refused", ("labels",)),
    "fifo-among-images": (lambda d: os.mkfifo(d / "images/extra.nii.gz"), "either", ("extra",)),
    "different-size": (lambda d: shutil.copy(d / f"labels/{_B}.nii.gz", d / f"images/{_B}.nii.gz"), "either", (_B,)),
}  # fmt: skip


def trials() -> Iterator[Trial]:
    for name, (data, expect) in RAW.items():
        for file in ("list.json", "dataset.json"):
            yield Trial("lists", f"{file}/{name}", partial(_raw, data, file, expect))
    for key in ("image", "label"):
        for name, (value, expect) in ENTRY.items():
            for kind in ("list", "decathlon"):
                filled = json.loads("[" * 200 + "]" * 200) if name == "deep" else value
                yield Trial("lists", f"{kind}/{key}/{name}", partial(_entry, kind, key, filled, expect))
    for name, (value, expect) in _IDS.items():
        yield Trial("lists", f"id/{name}", partial(_entry, "list", "id", value, expect))
    for kind, keys in (("decathlon", ("training", "labels", "modality", "name")),
                       ("nnunet", ("channel_names", "labels", "numTraining", "file_ending", "name"))):  # fmt: skip
        for key in keys:
            for name, (value, expect) in TOP.items():
                wanted: Expect = "either" if (kind, key, name) in _SOUND or key == "name" else expect
                yield Trial("lists", f"{kind}/{key}/{name}", partial(_top, kind, key, value, wanted))
    for name, (change, expect, names) in FOLDERS.items():
        yield Trial("lists", f"nnunet-folder/{name}", partial(_folder, change, expect, names))
    for name, (value, expect) in SPLITS.items():
        yield Trial("lists", f"splits_final/{name}", partial(_split, value, expect))
    for fold in (1, 5, -1, 10**12):
        yield Trial("lists", f"splits_final/fold={fold}", partial(_fold, fold))
    for name, (make, expect) in CSV.items():
        yield Trial("lists", f"csv/{name}", partial(_csv, make, expect))
    for name, (change, expect, names) in PAIRS.items():
        yield Trial("lists", f"pairs/{name}", partial(_pairs, change, expect, names))
