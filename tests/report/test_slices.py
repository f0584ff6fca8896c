from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.report import slices
from hasten.report.page import run_sections
from hasten.report.read import read_run


def pixels(uri: str) -> np.ndarray:
    head, data = uri.split(",", 1)
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


def rgb(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def test_a_class_is_tinted_and_outlined_in_its_colour() -> None:
    label = np.zeros((16, 16), np.uint8)
    label[4:8, 4:8], label[8:12, 4:8] = 1, 2
    shown = pixels(slices.label_uri(label))
    size = shown.shape[0] // 16
    centre = [(6 * size, 6 * size), (10 * size, 6 * size)]
    for (row, column), color in zip(centre, slices.COLORS, strict=False):
        assert shown[row, column].tolist() == [*rgb(color), 80]
    # Both sides of the border between two classes are drawn, each in its own colour; so is the border to nothing.
    assert shown[8 * size - 1, 6 * size].tolist() == [*rgb(slices.COLORS[0]), 255]
    assert shown[8 * size, 6 * size].tolist() == [*rgb(slices.COLORS[1]), 255]
    assert shown[4 * size, 6 * size, 3] == 255
    assert shown[4 * size - 1, 6 * size, 3] == 0


def test_a_difference_tells_the_three_errors_apart() -> None:
    label = np.array([[0, 1, 1, 0, 2]], np.uint8)
    prediction = np.array([[0, 1, 0, 1, 1]], np.uint8)
    shown = pixels(slices.difference_uri(label, prediction))
    size = shown.shape[1] // 5
    middle = shown[size // 2, size // 2 :: size]
    assert middle[:2, 3].tolist() == [0, 0]
    assert middle[2:].tolist() == [[*rgb(color), 255] for color in (slices.MISSED, slices.EXTRA, slices.CONFUSED)]


@pytest.mark.parametrize("labels", [{0: "background", 255: "a"}, {0: "background", 2: "a", 5: "b"}, {0: "b", 1: "a"}])
def test_a_runs_classes_have_their_colours_whatever_their_values(
    labels: dict[int, str], make_run: Callable[..., Path]
) -> None:
    """Label maps of examples.npz hold class indices, and not the values of the files."""
    names = [name for value, name in labels.items() if value]
    label = np.repeat(np.arange(len(names) + 1, dtype=np.uint8), 4)[None].repeat(8, axis=0)
    arrays = {"image_0": np.zeros(label.shape, np.float32), "label_0": label, "prediction_0": label[:, ::-1]}
    folder = make_run(examples=arrays)
    (folder / "plan.json").write_text(json.dumps({"fingerprint": {"labels": labels}}))
    (section,) = (each for each in run_sections(read_run(folder)) if each.slices)
    assert [(key.name, key.color) for key in section.keys[: len(names)]] == list(
        zip(names, slices.COLORS, strict=False)
    )
    (shown,) = section.slices
    for shown_map, drawn in ((shown.label, label), (shown.prediction, label[:, ::-1])):
        picture = pixels(slices.label_uri(shown_map))
        size = picture.shape[1] // label.shape[1]
        middle = picture[size // 2, size // 2 :: size]
        expected = [rgb(slices.COLORS[index - 1]) if index else None for index in drawn[0]]
        assert [pixel[:3].tolist() if pixel[3] else None for pixel in middle] == expected
