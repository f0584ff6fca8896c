from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cases.sources import load_case_set


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
        (("image/", "label/"), r"images/ with labels/, .*images/ .*there is image/ .* and"),
        (("Images/", "Labels/"), r"images/ is missing \(there is Images/ instead\)"),
        (("images/", "masks/"), r"images/ with labels/, .*labels/ .*masks/ .*: rename"),
        (("images/",), r"images/ with labels/, but labels/ is missing: add"),
        (("imagesTr/", "labelTr/"), r"imagesTr/ with labelsTr/, .*labelsTr/ .*there is labelTr/"),
        (("imagesTr/", "imagesTs/"), r"labelsTr/ is missing: add .*nnU-Net's .*a dataset.json"),
        (("imagesTs/", "labelsTr/"), r"but imagesTr/ is missing: add"),
        (("Dataset.json", "imagesTr/"), r"with a dataset.json, .*Dataset.json: rename"),
        (("Task04/dataset.json",), r"lies one folder deeper: name .*/Task04\."),
        (("a/images/", "a/labels/", "b/dataset.json"), r"one folder deeper: name .*/a or .*/b\."),
        (("a.nii.gz", "b.nii.gz"), r"holds 2 image files itself: put images into images/"),
        (("Dataset001_A/dataset.json", "Dataset002_B/dataset.json"), r"nnU-Net data sets: .*t001_A, .*t002_B"),
        (("Dataset001_A/",), r"nnU-Net data sets: name one of them, .*Dataset001_A"),
        (("other/",), r"found other/. Rename .*or pass .*list"),
    ],
)  # fmt: skip
def test_the_nearest_layout_is_named(tmp_path: Path, names: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        load_case_set(tree(tmp_path, *names))
    assert str(error.value).startswith(f"{tmp_path}: has no known layout")


@pytest.mark.parametrize(
    ("names", "content", "what"),
    [
        (("imagesTr/", "labelsTr/"), "{}", r'Nearest is nnU-Net.*"file_ending" is missing; add'),
        (("imagesTr/", "labelTr/"), "{}", r"missing, .*no labelsTr/ \(there is labelTr/"),
        ((), "{}", r'no "training" list .* \(Decathlon\), .*no "file_ending"'),
        (("imageTr/", "labelsTr/"), "NNUNET", r"no imagesTr/, .* \(there is imageTr/ .*renam"),
        (("imagesTr/",), "NNUNET", r"has no labelsTr/, which nnU-Net's layout wants; add it"),
    ],
)  # fmt: skip
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


def test_a_text_beside_the_images_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 label maps have no image of the same name in images/: b\.png"):
        load_case_set(tree(tmp_path, "images/a.png", "images/notes.txt", "labels/a.png", "labels/b.png"))
