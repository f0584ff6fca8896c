from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.cases.slide import open_slide
from hasten.cases.slide.annotation import draw_polygons, read_lesions
from hasten.phantoms.slides import make_phantom_slide, write_pyramid

ASAP = "<ASAP_Annotations><Annotations>{}</Annotations></ASAP_Annotations>"


def polygon(corners: list[tuple[float, float]], group: str = "Tumor") -> str:
    """ASAP's XML of one polygon, its corners in another order in the file than their number."""
    points = [f'<Coordinate Order="{n}" X="{x}" Y="{y}" />' for n, (x, y) in enumerate(corners)]
    return (
        f'<Annotation Name="a" Type="Polygon" PartOfGroup="{group}"><Coordinates>{"".join(reversed(points))}'
        "</Coordinates></Annotation>"
    )


def square(low: float, high: float, group: str = "Tumor") -> str:
    return polygon([(low, low), (high, low), (high, high), (low, high)], group)


def written(tmp_path: Path, *polygons: str) -> Path:
    path = tmp_path / "a.xml"
    path.write_text(ASAP.format("".join(polygons)))
    return path


def test_a_mask_is_read_on_any_level(slides: Path) -> None:
    lesion = make_phantom_slide(0, size=(640, 512), seed=3)[1] > 0
    assert lesion.any()
    with open_slide(slides / "slides" / "phantom_000.tif") as slide:
        for level, step in ((0, 1), (1, 2), (2, 4)):
            result = read_lesions(slides / "masks" / "phantom_000.tif", slide, level)
            np.testing.assert_array_equal(result, lesion[::step, ::step])


def test_a_mask_of_another_size_is_refused(slides: Path, tmp_path: Path) -> None:
    write_pyramid(tmp_path / "small.tif", np.zeros((320, 256), np.uint8), 1, 1.0, "none")
    with (
        open_slide(slides / "slides" / "phantom_000.tif") as slide,
        pytest.raises(ValueError, match=r"small.tif: .*320 x 256 .*phantom_000.tif is 640 x 512"),
    ):
        read_lesions(tmp_path / "small.tif", slide, 0)


def test_polygons_cover_the_pixels_inside_them(tmp_path: Path) -> None:
    path = written(tmp_path, square(20, 60))
    fine = draw_polygons(path, (100, 100), 1.0)
    assert fine[21:59, 21:59].all()
    assert not fine[:19].any()
    assert not fine[62:].any()
    coarse = draw_polygons(path, (25, 25), 4.0)
    assert abs(coarse.sum() * 16 - 1600) < 1600 * 0.3
    assert coarse[6:14, 6:14].all()


def test_overlapping_polygons_are_even_odd_and_exclusions_cut(tmp_path: Path) -> None:
    nested = draw_polygons(written(tmp_path, square(10, 90), square(30, 70)), (100, 100), 1.0)
    assert nested[20, 20]
    assert not nested[50, 50]
    cut = draw_polygons(written(tmp_path, square(30, 70, "_2"), square(10, 90, "_0")), (100, 100), 1.0)
    assert cut[20, 20]
    assert not cut[50, 50]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<ASAP_Annotations>", "can't be read as XML"),
        ("<Other/>", "begins with <Other>, not <ASAP_Annotations>"),
        (ASAP.format('<Annotation Name="b"><Coordinate X="1"/></Annotation>'), "annotation 'b' has a corner without"),
    ],
    ids=["cut", "other", "corner"],
)
def test_xml_that_is_not_asaps_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.xml"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"a.xml: .*{message}"):
        draw_polygons(path, (10, 10), 1.0)
