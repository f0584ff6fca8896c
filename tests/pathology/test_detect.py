from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.cases.slide import open_slide
from hasten.cases.slide.listing import SlideCase
from hasten.pathology.config import DetectConfig
from hasten.pathology.evaluate import froc_content, lesions_of, lesions_on, major_axes, on_slide, suppress
from hasten.phantoms.slides import write_pyramid

measure = pytest.importorskip("skimage.measure")


def blobs(seed: int) -> np.ndarray:
    """(96, 128) discs of many sizes, some of them close to each other, one with a hole."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:96, :128]
    mask = np.zeros((96, 128), bool)
    for _ in range(6):
        mask |= np.hypot(y - rng.uniform(8, 88), x - rng.uniform(8, 120)) < rng.uniform(1, 12)
    mask |= abs(np.hypot(y - 48, x - 64) - 9) < 2
    return mask


@pytest.mark.parametrize("seed", range(4))
def test_lesions_are_those_of_monai(seed: int) -> None:
    from monai.apps.pathology.utils import compute_isolated_tumor_cells, compute_multi_instance_mask

    mask, pixel = blobs(seed), 16.0
    labels, excluded = lesions_of(mask, pixel)
    expected = compute_multi_instance_mask(mask.astype(np.uint8), 75 / (pixel * 2))
    np.testing.assert_array_equal(labels, expected)
    assert excluded == compute_isolated_tumor_cells(expected, (200 + 75) / pixel)
    assert labels.max() > 1
    assert len(excluded) < labels.max()


def test_froc_of_slides_is_that_of_monais_lesion_froc(tmp_path: Path) -> None:
    from monai.apps.pathology.metrics import LesionFROC
    from monai.metrics import compute_fp_tp_probs_nd

    level, mpp, ours, data = 3, 2.0, [], []
    detect = DetectConfig(mask_downsample=8, box=6, threshold=0.5)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        lesion = np.kron(blobs(seed), np.ones((8, 8), np.uint8)).astype(np.uint8)
        # Some of each lesion scores high, some lesions nowhere, and so do specks of other tissue.
        heat = blobs(seed) * rng.uniform(0.3, 1, (96, 128)) * (np.arange(128) > 40)
        heat = np.maximum(heat, (rng.random((96, 128)) < 0.004) * rng.uniform(0.5, 1, (96, 128)))
        slide, mask, values = (tmp_path / f"{seed}{end}" for end in (".tif", "_mask.tif", ".npy"))
        write_pyramid(slide, np.repeat(lesion[..., None] * 255, 3, 2), 4, mpp, "deflate")
        write_pyramid(mask, lesion, 4, mpp, "deflate")
        np.save(values, heat.astype(np.float32))
        data.append({"prob_map": str(values), "tumor_mask": str(mask), "level": level, "pixel_spacing": mpp})
        scores, cells = suppress(heat.astype(np.float32), threshold=0.5, box=6)
        with open_slide(slide, "tifffile") as opened:
            case = SlideCase(id=str(seed), slide=slide, mask=mask)
            lesions, excluded, downsample = lesions_on(opened, case, detect)
        assert downsample == 8
        points = (on_slide(cells, 8.0) / downsample).astype(int)
        ours.append(compute_fp_tp_probs_nd(scores, points, lesions, excluded))
    theirs = LesionFROC(data, nms_box_size=6, nms_prob_threshold=0.5, image_reader_name="OpenSlide").evaluate()
    result = froc_content(*zip(*ours, strict=True))["score"]
    assert 0.05 < result < 0.999
    assert result == pytest.approx(float(theirs), abs=1e-9)


def test_lesions_of_a_slide_of_unknown_size(tmp_path: Path) -> None:
    image = np.zeros((256, 256), np.uint8)
    write_pyramid(tmp_path / "a.tif", image, 1, 1.0, "none")
    with open_slide(tmp_path / "a.tif") as slide:
        slide.mpp = None
        case = SlideCase(id="a", slide=tmp_path / "a.tif", mask=tmp_path / "a.tif")
        with pytest.raises(ValueError, match=r"a.tif: does not state the size of its pixels.*data.mpp"):
            lesions_on(slide, case, DetectConfig())


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 0.9, 1.0])
def test_axes_are_those_of_scikit_image(share: float) -> None:
    labels = measure.label(np.random.default_rng(0).random((40, 57)) < share)
    expected = [each.axis_major_length for each in measure.regionprops(labels)]
    np.testing.assert_allclose(major_axes(labels, int(labels.max())), expected, atol=1e-6)
