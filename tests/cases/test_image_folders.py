from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cases.image_folders import pair_files
from hasten.cases.sources import find_listing, load_case_set


def tree(folder: Path, *names: str) -> Path:
    """Empty files and, where a name ends in a slash, folders."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("{}" if name.endswith(".json") else "")
    return folder


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("image/", "label/"), r"found image/, label/\. Rename the folders"),
        (("Task04/dataset.json",), r"Name .*/Task04\."),
        (("a/images/", "a/labels/", "b/dataset.json"), r"Name .*/a or .*/b\."),
    ],
)
def test_a_folder_of_no_layout(tmp_path: Path, names: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        load_case_set(tree(tmp_path, *names))
    assert str(error.value).startswith(f"{tmp_path}: has no known layout")


@pytest.mark.parametrize(
    ("names", "content", "what"),
    [
        (("imagesTr/", "labelsTr/"), "{}", r'must have one list of .* or "file_ending" with imagesTr'),
        (("imagesTr/",), "NNUNET", r"has no labelsTr/, which nnU-Net's layout wants; add or rename it"),
    ],
)
def test_a_dataset_json_of_no_layout(tmp_path: Path, names: tuple[str, ...], content: str, what: str) -> None:
    nnunet = '{"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1}, "file_ending": ".nii.gz"}'
    tree(tmp_path, *names)
    (tmp_path / "dataset.json").write_text(nnunet if content == "NNUNET" else content)
    with pytest.raises(ValueError, match=what):
        load_case_set(tmp_path)


@pytest.mark.parametrize(
    ("names", "folder", "shown"),
    [
        (("images/a.webp", "labels/a.png"), "images", "1 files .*: a.webp; convert"),
        (("images/a_0000.gif", "images/a_0001.gif", "labels/a.png"), "images", "2 files .*: a_0000.gif, a_0001.gif;"),
        (("images/a.png", "labels/a.npy"), "labels", "1 files .*: a.npy; convert"),
        (("images/a_0000.png", "images/notes.txt", "labels/a.gif"), "labels", "1 files .*: a.gif; convert"),
        (("images/a.webp", "labels/a.webp"), "images", "1 files .*: a.webp; convert"),
    ],
)
def test_files_of_a_kind_that_is_not_read_are_named(
    tmp_path: Path, names: tuple[str, ...], folder: str, shown: str
) -> None:
    with pytest.raises(ValueError, match=shown) as error:
        load_case_set(tree(tmp_path, *names))
    assert str(error.value).startswith(f"{tmp_path / folder}: ")


@pytest.mark.parametrize(
    ("images", "labels", "ids"),
    [
        ("c0.nrrd c1.nrrd", "c0.seg.nrrd c1.seg.nrrd", "c0 c1"),
        ("w00.tif w01.tif", "w00_masks.tif w01_mask.tif", "w00 w01"),
        ("w00.png", "w00_cp_masks.png", "w00"),
        ("W00.png", "w00.png", "W00"),
        ("w00.ome.tif w01.OME.TIFF", "w00.tif w01.ome.tif", "w00 w01"),
        ("img0001.nii.gz img0002.nii.gz", "label0001.nii.gz label0002.nii.gz", "img0001 img0002"),
        ("t_0001.tif t_0002.tif", "t_0001_seg.tif t_0002_seg.tif", "t_0001 t_0002"),
        ("p_0000.nii p_0001.nii q_0000.nii q_0001.nii", "p_label.nii q-label.nii", "p q"),
        ("mask.png other.png", "mask.png other.png", "mask other"),
    ],
)
def test_names_that_are_alike_are_paired(tmp_path: Path, images: str, labels: str, ids: str) -> None:
    tree(tmp_path, *(f"images/{name}" for name in images.split()), *(f"labels/{name}" for name in labels.split()))
    cases = pair_files(tmp_path / "images", tmp_path / "labels")
    assert [case.id for case in cases] == ids.split()
    assert [path.name for case in cases for path in case.image] == images.split()
    assert [case.label.name for case in cases if case.label] == labels.split()


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ("w00.png w00_masks.png w01.tif w01_seg.png", "w00 w01"),
        ("w00_img.png w00_masks.png", "w00_img"),
        ("c0.nrrd c0.seg.nrrd c0_label.nrrd", ""),
        ("w00.png w00_masks.png w01.png", ""),
        ("w00.png w00_masks.png other/", ""),
        ("w00.png w01.png", ""),
    ],
)
def test_images_and_label_maps_in_one_folder(tmp_path: Path, names: str, ids: str) -> None:
    tree(tmp_path, *names.split())
    if not ids:
        with pytest.raises(ValueError, match=r"no known layout|share a name"):
            find_listing(tmp_path)
        return
    cases = find_listing(tmp_path).cases
    assert [case.id for case in cases] == ids.split()
    assert [path.name for case in cases for path in (*case.image, case.label) if path] == names.split()


@pytest.mark.parametrize(
    ("images", "labels", "what"),
    [
        ("w00.png", "w00_mask.png w00_seg.png", "several names are alike, w00 and w00_mask, w00_seg; give"),
        ("w00.png W00.png", "w00_mask.png", "several names are alike, W00, w00 and w00_mask; give"),
        ("w00.png w01.png", "w00_mask.png w02_mask.png", r"no label map .*: w01\.png \(nearest is w02_mask\), and"),
        (
            "w0.png",
            "w0_binary.png",
            r"no label map .*: w0\.png.*, and labels/ has w0_binary\.png without an image; give",
        ),
        ("w00.png", "w00.png w00_mask.png", r"1 label maps have no image .*: w00_mask\.png; add"),
    ],
)
def test_names_that_fit_several_or_none(tmp_path: Path, images: str, labels: str, what: str) -> None:
    tree(tmp_path, *(f"images/{name}" for name in images.split()), *(f"labels/{name}" for name in labels.split()))
    with pytest.raises(ValueError, match=what):
        pair_files(tmp_path / "images", tmp_path / "labels")
