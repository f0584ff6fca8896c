"""Label maps that do not fit their image, hold other values than declared, or none that can be learned from."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trial.base import CASES, TINY_2D, entries, image_of, label_of, train_args, write_list
from benchmarks.trial.images import SPOILT, Spoil
from benchmarks.trial.judge import Expect
from benchmarks.trial.run import Box, Command, Trial

Change = Callable[[np.ndarray], np.ndarray]


def _put(value: float, kind: str) -> Change:
    def change(label: np.ndarray) -> np.ndarray:
        label = label.astype(kind)
        label[3, 4, 5] = value
        return label

    return change


VALUES: dict[str, tuple[Change, Expect]] = {
    "half": (_put(0.5, "float32"), "refused"),
    "nan": (_put(float("nan"), "float32"), "refused"),
    "inf": (_put(float("inf"), "float32"), "refused"),
    "negative": (_put(-1, "int16"), "refused"),
    "undeclared": (_put(7, "uint8"), "refused"),
    "huge": (_put(1e9, "int32"), "refused"),
    "huge-int64": (_put(2**40, "int64"), "refused"),
    "1e30": (_put(1e30, "float64"), "refused"),
    "float-integers": (lambda label: label.astype(np.float64), "accepted"),
    "interpolated": (lambda label: label.astype(np.float32) * 0.7, "refused"),
    "probabilities": (lambda label: np.random.default_rng(0).random(label.shape, np.float32), "refused"),
    "all-background": (np.zeros_like, "accepted"),
    "all-foreground": (np.ones_like, "accepted"),
    "255-for-1": (lambda label: label.astype(np.uint8) * 255, "refused"),
    "smaller": (lambda label: label[:, :, :-1], "refused"),
    "transposed": (lambda label: label.transpose(2, 1, 0), "refused"),
    "one-slice": (lambda label: label[:, :, :1], "refused"),
    "2-d": (lambda label: label[:, :, 3], "refused"),
    "one-hot": (lambda label: np.stack([label == 0, label == 1], -1).astype(np.uint8), "refused"),
    "time-series": (lambda label: np.stack([label] * 3, -1), "refused"),
    "complex": (lambda label: label.astype(np.complex64), "refused"),
    "empty": (lambda label: label[:0], "refused"),
}
AFFINES: dict[str, tuple[np.ndarray, Expect]] = {
    "moved-10-mm": (np.array([[1, 0, 0, 10], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), "refused"),
    "flipped": (np.diag([-1, 1, 1, 1.0]), "refused"),
    "spacing-doubled": (np.diag([2, 2, 2, 1.0]), "refused"),
    "axes-swapped": (np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), "refused"),
    "nan": (np.full((4, 4), np.nan), "refused"),
    "zero": (np.zeros((4, 4)), "refused"),
    "within-rounding": (np.array([[1, 0, 0, 1e-6], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), "accepted"),
}


def _given(box: Box, label: Path, expect: Expect, declared: Any = None, names: Any = ("culprit",)) -> Command:
    cases = entries(box.base / "volumes")
    cases[1]["label"] = str(label)
    source = write_list(box, cases, labels=declared)
    return Command(args=train_args(source), names=names, expect=expect)


def _save(box: Box, array: np.ndarray, move: np.ndarray | None = None, name: str = "culprit.nii.gz") -> Path:
    import nibabel as nib

    sound = nib.load(label_of(box.base / "volumes", CASES[1]))
    affine = sound.affine if move is None else move @ sound.affine
    data = bytearray(nib.Nifti1Image(array, sound.affine, dtype=array.dtype).to_bytes())
    # nibabel itself writes no affine without a meaning.
    struct.pack_into("<hh", data, 252, 0, 1)
    struct.pack_into("<12f", data, 280, *affine[:3].ravel())
    (box.folder / name).write_bytes(gzip.compress(data))
    return box.folder / name


def _array(box: Box) -> np.ndarray:
    import nibabel as nib

    return np.asarray(nib.load(label_of(box.base / "volumes", CASES[1])).dataobj)


def _value(change: Change, expect: Expect, box: Box) -> Command:
    return _given(box, _save(box, change(_array(box))), expect)


def _undeclared(change: Change, expect: Expect, box: Box) -> Command:
    """As `_value`, in a folder of pairs, whose classes are taken from the label maps."""
    for folder, of in (("images", image_of), ("labels", label_of)):
        (box.folder / "set" / folder).mkdir(parents=True)
        for case in CASES:
            (box.folder / "set" / folder / f"{case}.nii.gz").symlink_to(of(box.base / "volumes", case))
    (box.folder / "set" / "labels" / f"{CASES[1]}.nii.gz").unlink()
    _save(box, change(_array(box)), name=f"set/labels/{CASES[1]}.nii.gz")
    return Command(args=train_args("set"), names=[CASES[1]], expect=expect)


def _affine(move: np.ndarray, expect: Expect, box: Box) -> Command:
    return _given(box, _save(box, _array(box), move), expect)


def _file(spoil: Spoil, expect: Expect, box: Box) -> Command:
    path = _save(box, _array(box))
    spoil(path)
    return _given(box, path, expect)


def _no_foreground(box: Box) -> Command:
    """Not one voxel of the class in any case: nothing can be learned."""
    cases = entries(box.base / "volumes")
    for case in cases:
        case["label"] = str(_save(box, np.zeros_like(_array(box)), name=f"{case['id']}.nii.gz"))
    return Command(args=train_args(write_list(box, cases)), names=["label", "spleen", "foreground"], expect="refused")


def _class_never_there(box: Box) -> Command:
    declared = {"0": "background", "1": "spleen", "2": "liver"}
    source = write_list(box, entries(box.base / "volumes"), labels=declared)
    return Command(args=train_args(source), names=["liver"], expect="warned")


def _many_classes(count: int, expect: Expect, box: Box) -> Command:
    array = (np.arange(_array(box).size) % count).reshape(_array(box).shape)
    cases = entries(box.base / "volumes")
    for case in cases:
        case["label"] = str(_save(box, array.astype(np.int32), name=f"{case['id']}.nii.gz"))
    declared = {str(value): f"class {value}" for value in range(count)}
    return Command(args=train_args(write_list(box, cases, labels=declared)), names=["label", "class"], expect=expect)


def _image_as_label(box: Box) -> Command:
    return _given(box, image_of(box.base / "volumes", CASES[1]), "refused", names=(CASES[1],))


def _label_as_image(box: Box) -> Command:
    """The same file twice: a slip in a list, which trains to a perfect Dice."""
    cases = entries(box.base / "volumes")
    for case in cases:
        case["image"] = case["label"]
    return Command(args=train_args(write_list(box, cases)), names=[CASES[0], CASES[1]], expect="warned")


def _of_another_case(box: Box) -> Command:
    """One label map for all images."""
    cases = entries(box.base / "volumes")
    for case in cases:
        case["label"] = cases[0]["label"]
    return Command(args=train_args(write_list(box, cases)), names=[CASES[0], "label"], expect="warned")


def _picture(ending: str, mode: str, expect: Expect, box: Box) -> Command:
    from PIL import Image

    label = Image.open(label_of(box.base / "pictures", CASES[1]))
    if ending == ".jpg":
        label = label.point(lambda value: value * 120)  # lossless it would be, as 0 and 1
    label.convert(mode).save(box.folder / f"culprit{ending}")
    cases = entries(box.base / "pictures")
    cases[1]["label"] = str(box.folder / f"culprit{ending}")
    args = train_args(write_list(box, cases), settings=TINY_2D)
    return Command(args=args, names=["culprit"], expect=expect)


DECLARED: dict[str, tuple[Any, Expect]] = {
    "a-list": (["background", "spleen"], "either"), "a-text": ("spleen", "refused"), "none": ({}, "refused"),
    "number": (5, "refused"), "only-background": ({"0": "background"}, "refused"),
    "no-background": ({"1": "spleen"}, "either"), "negative": ({"0": "background", "-1": "spleen"}, "refused"),
    "fraction": ({"0": "background", "1.5": "spleen"}, "refused"), "words": ({"a": "b", "c": "d"}, "refused"),
    "same-name": ({"0": "background", "1": "spleen", "2": "spleen"}, "refused"),
    "empty-name": ({"0": "background", "1": ""}, "refused"), "list-name": ({"0": "background", "1": [1]}, "refused"),
    "null-name": ({"0": "background", "1": None}, "refused"), "5000-digits": ({"0": "b", "9" * 5000: "s"}, "refused"),
    "1e400": ({"0": "background", "1e400": "spleen"}, "refused"), "nan": ({"0": "b", "nan": "s"}, "refused"),
    "escape-codes": ({"0": "background", "1": "\x1b[31mspleen\x1b]0;x\x07"}, "either"),
    "long-name": ({"0": "background", "1": "s" * 100_000}, "either"), "300": ({str(i): f"c{i}" for i in range(300)},
        "refused"),
    "same-value": ({"0": "background", "00": "b", "1": "spleen"}, "refused"),
    "blank-value": ({"0": "background", " 1": "spleen"}, "either"),
    "arabic-digits": ({"0": "background", "١": "spleen"}, "either"), "superscript": ({"0": "b", "²": "s"}, "refused"),
    "underscore": ({"0": "background", "1_0": "spleen"}, "refused"), "bool": ({"0": "b", "true": "s"}, "refused"),
}  # fmt: skip


def _declared(labels: Any, expect: Expect, box: Box) -> Command:
    args = train_args(write_list(box, entries(box.base / "volumes"), labels=labels))
    return Command(args=args, names=["list.json"], expect=expect)


def trials() -> Iterator[Trial]:
    for name, (change, expect) in VALUES.items():
        yield Trial("labels", f"values/{name}", partial(_value, change, expect))
        result: Expect = "either" if name in ("undeclared", "255-for-1", "huge", "huge-int64") else expect
        yield Trial("labels", f"undeclared-values/{name}", partial(_undeclared, change, result))
    for name, (move, expect) in AFFINES.items():
        yield Trial("labels", f"affine/{name}", partial(_affine, move, expect))
    for name, (spoil, expect) in SPOILT.items():
        yield Trial("labels", f"file/{name}", partial(_file, spoil, expect))
    for name, (labels, expect) in DECLARED.items():
        yield Trial("labels", f"declared/{name}", partial(_declared, labels, expect))
    for count, expect in ((28, "accepted"), (117, "accepted"), (256, "either"), (257, "refused"), (1000, "refused")):
        yield Trial("labels", f"{count}-classes", partial(_many_classes, count, expect))
    for ending, mode, expect in (
        (".jpg", "L", "refused"), (".png", "RGB", "refused"), (".png", "RGBA", "refused"), (".tif", "F", "accepted"),
        (".png", "LA", "either"), (".bmp", "L", "accepted"),
    ):  # fmt: skip
        yield Trial("labels", f"picture/{mode}{ending}", partial(_picture, ending, mode, expect))
    yield Trial("labels", "no-foreground-at-all", _no_foreground)
    yield Trial("labels", "class-never-there", _class_never_there)
    yield Trial("labels", "image-as-label", _image_as_label)
    yield Trial("labels", "label-as-image", _label_as_image)
    yield Trial("labels", "one-for-all-cases", _of_another_case)
