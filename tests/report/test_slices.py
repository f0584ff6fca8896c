from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from hasten.report import slices


def pixels(uri: str) -> np.ndarray:
    head, data = uri.split(",", 1)
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


def rgb(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]


def test_an_image_keeps_its_values() -> None:
    image = np.array([[0.0, 0.5, 1.0], [np.nan, -3.0, 7.0]], np.float32)
    assert pixels(slices.image_uri(image))[..., 0].tolist() == [[0, 128, 255], [0, 0, 255]]


@pytest.mark.parametrize("shape", [(32, 48), (1, 7), (400, 1000), (640, 640)])
def test_overlays_keep_the_proportions(shape: tuple[int, int]) -> None:
    uri = slices.label_uri(np.ones(shape, np.uint8))
    height, width, _ = pixels(uri).shape
    assert max(height, width) <= slices.LONG_SIDE
    assert height / width == pytest.approx(shape[0] / shape[1], rel=0.01)


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


def test_an_empty_label_is_clear() -> None:
    assert pixels(slices.label_uri(np.zeros((8, 8), np.uint8)))[..., 3].max() == 0
