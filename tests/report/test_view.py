"""Pages of cases: what lies where in the embedded slices, and what a browser makes of them."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import tifffile
from nibabel.orientations import axcodes2ornt, inv_ornt_aff, ornt_transform
from PIL import Image

from hasten.cases.types import spacing_of
from hasten.config.load import dump_run, load_run
from hasten.phantoms.organs import write_phantoms
from hasten.prepare.orient import orientation_of
from hasten.report import view
from hasten.report.slices import COLORS, EXTRA, MISSED
from hasten.report.view import write_batch_page, write_case_pages
from tests.chromium import CHROMIUM, browser

SHAPE = (12, 10, 6)
"""x, y, z of the file, which run to the left, to posterior, and to superior."""
AFFINE = np.diag([-2.0, -1.0, 3.0, 1.0])


def volumes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image, label and prediction: class 2 in front on the patient's left at the top, class 5 behind it, missed."""
    rng = np.random.default_rng(0)
    label = np.zeros(SHAPE, np.uint8)
    label[8:11, 1:3, 4:], label[8:11, 6:8, 1] = 2, 5
    prediction = np.where(label == 2, 2, 0).astype(np.uint8)
    prediction[1, 1, 1] = 5
    return rng.normal(100, 20, SHAPE).astype(np.float32), label, prediction


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on two cases, `front` and `back`, with `predictions` of them."""
    folder = tmp_path_factory.mktemp("view")
    image, label, prediction = volumes()
    for name in ("front", "back"):
        for part, array in (("data/images", image), ("data/labels", label), ("predictions", prediction)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(array, AFFINE), folder / part / f"{name}.nii.gz")
    (folder / "data/labels.json").write_text(json.dumps({"0": "background", "2": "Lesion", "5": "</script>"}))
    config = load_run(overrides=[f"data.source={folder / 'data'}", f"cache.dir={folder / 'cache'}"])
    (folder / "run.yaml").write_text(dump_run(config))
    return folder


def content(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def stack(pngs: list[str]) -> np.ndarray:
    """(slices, rows, columns) of embedded slices."""
    return np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))) for uri in pngs])


def as_shown(array: np.ndarray) -> np.ndarray:
    """A file's array (x, y, z) from inferior to superior, anterior to posterior, the patient's right to left."""
    turned = nib.as_closest_canonical(nib.Nifti1Image(array, AFFINE)).get_fdata()
    return turned[::-1, ::-1].transpose(2, 1, 0)


def test_the_embedded_slices_are_the_file_s_own_voxels_turned(run: Path, tmp_path: Path) -> None:
    (page,) = write_case_pages(run, ["front"], tmp_path, predictions=run / "predictions")
    (shown,) = content(page)["volumes"]
    image, label, prediction = volumes()
    index = np.zeros(6, np.uint8)
    index[[2, 5]] = 1, 2
    assert stack(shown["label"]).tolist() == as_shown(index[label]).tolist()
    assert stack(shown["prediction"]).tolist() == as_shown(index[prediction]).tolist()
    low, high = shown["values"][0]
    grey = np.rint((as_shown(image) - low) / (high - low) * 255).clip(0, 255)
    assert np.abs(stack(shown["channels"][0]) - grey).max() <= 1
    assert shown["mm"] == [18, 10, 24]  # of 6, 10 and 12 voxels of 3, 1 and 2 mm
    # The patient's left is the file's high x, shown on the right; anterior is its low y, at the top.
    place = stack(shown["label"]) == 1
    assert (place.any((1, 2)).nonzero()[0].tolist(), place.any((0, 1)).nonzero()[0].tolist()) == ([4, 5], [8, 9, 10])
    assert [(axis["name"], axis["first"], axis["step"]) for axis in shown["axes"]] == [
        ("z", 0, 1),
        ("y", 0, 1),
        ("x", 0, 1),
    ]


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR", "SLA", "IPL"])
def test_a_volume_of_any_orientation_is_turned_alike_and_its_slices_know_their_voxels(codes: str) -> None:
    array = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    ornt = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(tuple(codes)))
    affine = np.diag([1.0, 2.0, 3.0, 1.0]) @ inv_ornt_aff(ornt, (4, 5, 6))
    permute, flip = orientation_of(affine, "RAS", (6, 5, 4))
    shown = view.turned(
        "a", array.T[None], {"label": array.T}, permute, flip, spacing=spacing_of(affine), ranges=[(0, 1)]
    )
    expected = nib.as_closest_canonical(nib.Nifti1Image(array.astype(np.int16), affine)).get_fdata()
    assert shown.image[0].tolist() == expected[::-1, ::-1].transpose(2, 1, 0).tolist()
    assert shown.spacing == (3, 2, 1)
    at = (1, 2, 0)
    voxel = {axis["name"]: axis["first"] + axis["step"] * index for axis, index in zip(shown.axes, at, strict=True)}
    assert array[voxel["x"], voxel["y"], voxel["z"]] == shown.maps["label"][at]


def test_the_page_says_which_case_scores_and_classes_it_shows_and_holds_text_safely(run: Path, tmp_path: Path) -> None:
    pages = write_case_pages(run, ["front", "back"], tmp_path, predictions=run / "predictions")
    assert [page.name for page in pages] == ["front.html", "back.html"]
    text = pages[0].read_text(encoding="utf-8")
    assert [each["name"] for each in content(pages[0])["classes"]] == ["background", "Lesion", "</script>"]
    assert [each["color"] for each in content(pages[0])["classes"]][1:] == list(COLORS[:2])
    assert "12 × 10 × 6 voxels (x, y, z) of 2 × 1 × 3 mm" in text.replace("\xa0", " ")
    assert "Mean Dice 0.500" in text
    assert [each["detail"] for each in content(pages[0])["classes"]] == ["", "Dice 1.000", "Dice 0.000"]
    assert '<a href="back.html">back</a>' in text
    assert text.count("</script>") == 2
    assert "://" not in text.replace(str(run), "")


def test_a_case_that_is_none_is_an_error_that_names_the_nearest(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean front"):
        write_case_pages(run, ["fronnt"], tmp_path, predictions=run / "predictions")


def test_a_page_that_would_be_too_large_says_what_it_leaves_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST_BYTES", 63_500)
    (page,) = write_case_pages(run, ["front"], tmp_path, predictions=run / "predictions")
    (shown,) = content(page)["volumes"]
    _, label, _ = volumes()
    every = shown["axes"][0]["step"]
    assert every > 1
    assert f"one of {every} slices" in page.read_text(encoding="utf-8")
    sides = shown["axes"][1]["step"]
    assert (stack(shown["label"]) > 0).tolist() == (as_shown(label)[::every, ::sides, ::sides] > 0).tolist()
    assert page.stat().st_size < 63_500


@pytest.mark.parametrize(
    ("ending", "names"), [("png", ["red", "green", "blue"]), ("tif", ["image_0", "image_1", "image_2"])]
)
def test_channels_of_colour_have_its_names(tmp_path: Path, ending: str, names: list[str]) -> None:
    for folder in ("images", "labels"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for number in range(4):
        image = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
        file = tmp_path / f"data/images/{number}.{ending}"
        Image.fromarray(image).save(file) if ending == "png" else tifffile.imwrite(file, image, photometric="rgb")
        Image.fromarray(np.uint8(image[:, :, 0] > 99)).save(tmp_path / f"data/labels/{number}.png")
    config = load_run(overrides=[f"data.source={tmp_path / 'data'}", f"cache.dir={tmp_path / 'cache'}",
                                 "sample.patch=[1,16,16]", "sample.batch_size=4"])  # fmt: skip
    assert content(write_batch_page(config, tmp_path / "batch.html"))["channels"] == names


@pytest.mark.parametrize("dims", [2, 3])
def test_patches_are_those_of_the_batch_program(tmp_path: Path, dims: int) -> None:
    from hasten.training.choose.batch_program import choose_program
    from hasten.training.plan import plan_run
    from hasten.training.prepare_cases import arena_of

    data = write_phantoms(tmp_path / "data", num_cases=3, shape=(16 if dims == 3 else 1, 32, 32))
    patch = [8, 16, 16] if dims == 3 else [1, 16, 16]
    config = load_run(overrides=[f"data.source={data}", f"cache.dir={tmp_path / 'cache'}", f"sample.patch={patch}",
                                 "sample.batch_size=4"])  # fmt: skip
    shown = content(write_batch_page(config, tmp_path / "batch.html"))
    planned = plan_run(config)
    program = choose_program(planned, arena_of(planned))[0]
    assert len(shown["volumes"]) == 8
    for number, volume in enumerate(shown["volumes"]):
        batch, at = program(number // 4), number % 4
        label = batch["label"][at, 0].numpy().reshape(patch)
        image = batch["image"][at, 0].float().numpy().reshape(patch)
        if dims == 3:  # turned to the radiological view
            label, image = label[:, ::-1, ::-1], image[:, ::-1, ::-1]
        assert stack(volume["label"]).tolist() == label.tolist()
        low, high = volume["values"][0]
        assert np.abs(stack(volume["channels"][0]) - ((image - low) / (high - low) * 255).clip(0, 255)).max() <= 1
        assert volume["planes"] == ["axial"]


def hex_of(pixel: list[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in pixel)


CANVASES = "views.map(view => [...view.context.getImageData(0, 0, view.canvas.width, view.canvas.height).data])"


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
def test_a_browser_shows_each_plane_in_its_colours_and_moves_by_hash_key_and_slider(run: Path, tmp_path: Path) -> None:
    (page,) = write_case_pages(run, ["front"], tmp_path, predictions=run / "predictions")
    label = as_shown(volumes()[1])

    def colors() -> list[list[list[str]]]:
        sizes = [(10, 12), (6, 12), (6, 10)]
        return [
            [[hex_of(pixel[:3]) for pixel in row] for row in np.array(flat).reshape(rows, columns, 4).tolist()]
            for flat, (rows, columns) in zip(chromium.value(CANVASES), sizes, strict=True)
        ]

    with browser(tmp_path / "profile") as chromium:
        chromium.open(page)
        assert chromium.value("views.map(view => view.name)") == ["axial", "coronal", "sagittal"]
        chromium.value("location.hash = '#z=1&y=7&x=9&show=label&opacity=100'; restore(); drawAll()")
        axial, coronal, sagittal = colors()
        table = {0: "#000000", 2: COLORS[0], 5: COLORS[1]}
        assert axial == [[table[value] for value in row] for row in label[1].tolist()]
        assert coronal == [[table[value] for value in row] for row in label[::-1, 7].tolist()]
        assert sagittal == [[table[value] for value in row] for row in label[::-1, :, 9].tolist()]
        assert "x = 9, y = 7, z = 1" in chromium.value("at('readout').textContent")
        assert "label </script> · prediction background" in chromium.value("at('readout').textContent")
        chromium.value("location.hash = '#z=1&show=error&opacity=100'; restore(); drawAll()")
        found = {color for row in colors()[0] for color in row}
        assert found == {"#000000", MISSED, EXTRA}
        chromium.key("ArrowUp")
        assert "z = 2" in chromium.value("at('readout').textContent")
        chromium.value("views[2].slider.value = 3; views[2].slider.oninput()")
        assert "x = 3, y = 7, z = 2" in chromium.value("at('readout').textContent")
        assert "x=3&y=7&z=2" in chromium.value("location.hash")
        # Sides by the spacing: 24 mm to 10 mm, 24 to 18, 10 to 18; nothing reaches beyond a phone's width.
        boxes = "views.map(view => view.canvas.getBoundingClientRect()).map(box => box.width / box.height)"
        assert chromium.value(boxes) == pytest.approx([2.4, 24 / 18, 10 / 18], rel=0.02)
        chromium.open(page, width=400)
        assert chromium.value("document.documentElement.scrollWidth") <= 400
        assert chromium.value(boxes) == pytest.approx([2.4, 24 / 18, 10 / 18], rel=0.02)
