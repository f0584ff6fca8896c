"""Segments of 3D Slicer: a class is its name, whatever its value or layer in a file."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from hasten.cases.labels import find_labels, read_label_values
from hasten.cases.read import read_label
from hasten.cases.types import Case, Volume
from hasten.evaluation.evaluate import evaluate

pytest.importorskip("SimpleITK")

LABELS = {0: "background", 1: "liver", 2: "tumour"}


def write(path: Path, array: np.ndarray, *segments: tuple[str, int, int]) -> Path:
    """A .seg.nrrd as Slicer writes it, of (D, H, W) or (D, H, W, layers); segments: name, value and layer."""
    layers = array.ndim == 4
    lines = [
        "NRRD0004",
        "type: unsigned char",
        f"dimension: {array.ndim}",
        "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, array.T.shape))}",
        "endian: little",
        "encoding: gzip",
        "space origin: (0,0,0)",
        f"space directions: {'none ' * layers}(1,0,0) (0,1,0) (0,0,1)",
        f"kinds: {'list ' * layers}domain domain domain",
    ]
    for number, (name, value, layer) in enumerate(segments):
        fields = {"ID": f"Segment_{number + 1}", "Name": name, "LabelValue": value, "Layer": layer}
        lines += [f"Segment{number}_{field}:={content}" for field, content in fields.items()]
    content = gzip.compress(np.ascontiguousarray(array, np.uint8).tobytes())
    path.write_bytes("\n".join(lines).encode() + b"\n\n" + content)
    return path


def maps(liver: int, tumour: int) -> np.ndarray:
    array = np.zeros((3, 4, 5), np.uint8)
    array[1], array[2] = liver, tumour
    return array


def two_files(folder: Path) -> list[Path]:
    """The same map, with the values exchanged."""
    one = write(folder / "a.seg.nrrd", maps(1, 2), ("liver", 1, 0), ("tumour", 2, 0))
    return [one, write(folder / "b.nrrd", maps(2, 1), ("tumour", 1, 0), ("Liver", 2, 0))]


def test_a_class_is_the_name_of_its_segment(tmp_path: Path) -> None:
    paths = two_files(tmp_path)
    assert find_labels(paths, "here") == LABELS
    for path in paths:
        assert np.array_equal(read_label_values(path, LABELS).array[0], maps(1, 2))
        image = Volume(np.zeros((1, 3, 4, 5)), np.diag([-1.0, -1, 1, 1]))
        label = read_label(Case(id="a", image=(path,), label=path), {0: "background", 3: "Tumour", 9: "liver"}, image)
        assert np.array_equal(label, maps(2, 1))


def test_a_further_name_gets_a_free_value(tmp_path: Path) -> None:
    paths = [*two_files(tmp_path), write(tmp_path / "c.seg.nrrd", maps(1, 0), ("spleen", 1, 0))]
    assert find_labels(paths, "here") == {**LABELS, 3: "spleen"}
    assert np.array_equal(read_label_values(paths[2], {**LABELS, 3: "spleen"}).array[0], maps(3, 0))


def test_layers_without_overlap_are_one_map(tmp_path: Path) -> None:
    layers = np.stack([maps(1, 0), maps(0, 1)], -1)
    path = write(tmp_path / "a.seg.nrrd", layers, ("liver", 1, 0), ("tumour", 1, 1))
    assert find_labels([path], "here") == LABELS
    assert np.array_equal(read_label_values(path, LABELS).array[0], maps(1, 2))


def test_segments_that_overlap_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.seg.nrrd", np.stack([maps(1, 1), maps(0, 1)], -1), ("liver", 1, 0), ("tumour", 1, 1))
    with pytest.raises(ValueError, match=r"a\.seg\.nrrd: its segments liver and tumour overlap"):
        read_label_values(path, LABELS)


def test_names_that_are_no_class(tmp_path: Path) -> None:
    path = write(tmp_path / "a.seg.nrrd", maps(1, 2), ("liver", 1, 0), ("cyst", 2, 0))
    with pytest.raises(ValueError, match=r"a\.seg\.nrrd: holds the segments cyst, .*\(background, liver, tumour\)"):
        read_label_values(path, LABELS)
    assert np.array_equal(read_label_values(path, LABELS, ignore=2).array[0], maps(1, 2))
    alone = write(tmp_path / "b.seg.nrrd", maps(5, 0), ("Segment_1", 5, 0))
    assert np.array_equal(read_label_values(alone, {0: "background", 1: "liver"}).array[0], maps(1, 0))


def test_a_value_without_a_segment_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.seg.nrrd", maps(1, 7), ("liver", 1, 0))
    with pytest.raises(ValueError, match=r"a\.seg\.nrrd: names its segments, but holds the value 7"):
        find_labels([path], "here")


def test_predicted_segments_are_matched_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder, segments in (
        ("labels", [("liver", 1, 0), ("tumour", 2, 0)]),
        ("exchanged", [("tumour", 1, 0), ("Liver", 2, 0)]),
        ("strange", [("cyst", 1, 0), ("vessel", 2, 0)]),
    ):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.seg.nrrd", maps(2, 1) if folder == "exchanged" else maps(1, 2), *segments)
    scores = evaluate(tmp_path / "exchanged", tmp_path / "labels", num_workers=1)
    assert (scores.names, scores.mean(), caplog.text) == (("tumour", "Liver"), 1.0, "")
    scores = evaluate(tmp_path / "strange", tmp_path / "labels", num_workers=1)
    assert (scores.names, scores.mean()) == (("cyst", "vessel", "liver", "tumour"), 0.0)
    assert "holds the segments cyst, vessel, but the label maps" in caplog.text


def test_names_and_bare_values_do_not_mix(tmp_path: Path) -> None:
    paths = [*two_files(tmp_path), write(tmp_path / "c.nrrd", maps(1, 2))]
    with pytest.raises(ValueError, match=r"a\.seg\.nrrd: names its segments \(liver, \.\.\.\), but \S*c\.nrrd holds"):
        find_labels(paths, "here")
