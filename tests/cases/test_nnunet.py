from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from hasten.cache.key import files_of
from hasten.cases.labels import IGNORED
from hasten.cases.locate import FileLocator
from hasten.cases.nnunet import read_nnunet
from hasten.cases.read import read_image, read_label
from hasten.cases.sources import find_listing, load_case_set
from hasten.config.schema import CacheConfig

BRATS = {"background": 0, "whole tumour": [1, 2, 3], "tumour core": [2, 3], "enhancing": 3}

HEAD: dict[str, Any] = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1}}


def volume(path: Path, value: int = 0, dtype: type = np.int16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith((".mha", ".nrrd")):
        sitk = pytest.importorskip("SimpleITK")
        sitk.WriteImage(sitk.GetImageFromArray(np.full((4, 5, 6), value, dtype)), str(path))
    else:
        nib.save(nib.Nifti1Image(np.full((6, 5, 4), value, dtype), np.eye(4)), path)


def picture(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def listed(folder: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "channel_names": {"0": "T2", "1": "ADC"},
        "labels": {"background": 0, "PZ": 1, "TZ": 2},
        "numTraining": 2,
        "file_ending": ".nii.gz",
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset.json").write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
    return folder


def raw_set(folder: Path, kind: str = ".nii.gz", **changes: Any) -> Path:
    """Two cases of two channels, as nnU-Net keeps them."""
    for name in ("prostate_00", "prostate_01"):
        for channel in range(2):
            volume(folder / f"imagesTr/{name}_{channel:04d}{kind}", value=channel)
        volume(folder / f"labelsTr/{name}{kind}", value=2, dtype=np.uint8)
    volume(folder / f"imagesTs/prostate_02_0000{kind}")
    return listed(folder, file_ending=kind, **changes)


@pytest.mark.parametrize("kind", [".nii.gz", ".nii", ".mha", ".nrrd"])
def test_a_raw_folder(tmp_path: Path, kind: str) -> None:
    folder = raw_set(tmp_path / "Dataset005_Prostate", kind)
    (folder / "imagesTr/notes.txt").write_text("not a case")
    (folder / "imagesTr/.hidden_0000.nii.gz").write_text("left by an archiver")
    cases = load_case_set(folder)
    assert cases == load_case_set(folder / "dataset.json")
    assert (cases.name, cases.channels, cases.modality) == ("Dataset005_Prostate", ("T2", "ADC"), "T2")
    assert cases.labels == {0: "background", 1: "PZ", 2: "TZ"}
    assert (cases.regions, cases.region_values) == ({}, {})
    assert [case.id for case in cases.cases] == ["prostate_00", "prostate_01"]
    assert [path.name for path in cases.cases[1].image] == [f"prostate_01_0000{kind}", f"prostate_01_0001{kind}"]
    image = read_image(cases.cases[0])
    assert [float(channel.mean()) for channel in image.array] == [0, 1]
    assert read_label(cases.cases[0], cases.labels, image).max() == 2


def test_colour_pictures_are_one_file_of_three_channels(tmp_path: Path) -> None:
    for name in ("img-1", "img-2"):
        picture(tmp_path / f"imagesTr/{name}_0000.png", np.full((8, 9, 3), 7, np.uint8))
        picture(tmp_path / f"labelsTr/{name}.png", np.ones((8, 9), np.uint8))
    listed(
        tmp_path, file_ending=".png", channel_names={"0": "R", "1": "G", "2": "B"}, labels={"background": 0, "road": 1}
    )
    cases = load_case_set(tmp_path)
    assert (cases.spatial_dims, cases.channels, cases.cases[0].id) == (2, ("R", "G", "B"), "img-1")
    listed(tmp_path, file_ending=".png", labels={"background": 0, "road": 1})
    with pytest.raises(
        ValueError, match=r"img-1_0000.png: case img-1 has .* of 3 channels each, .* names the channels T2, ADC"
    ):
        load_case_set(tmp_path)


def test_a_stack_of_tiff_pages_with_its_spacing_beside(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((8, 9), number, np.uint8)) for number in range(4)]
    for path in (tmp_path / "imagesTr/cell_0000.tif", tmp_path / "labelsTr/cell.tif"):
        path.parent.mkdir()
        pages[0].save(path, save_all=True, append_images=pages[1:2] * 3)
        path.with_name("cell.json").write_text('{"spacing": [3, 0.5, 0.25]}')
    listed(tmp_path, file_ending=".tif", numTraining=1, channel_names={"0": "zscore"})
    cases = load_case_set(tmp_path)
    image = read_image(cases.cases[0])
    assert (image.array.shape, image.spacing) == ((1, 4, 8, 9), (3.0, 0.5, 0.25))
    assert read_label(cases.cases[0], cases.labels, image).shape == (4, 8, 9)
    before = files_of(cases.cases, CacheConfig())
    (tmp_path / "imagesTr/cell.json").write_text('{"spacing": [3, 1, 1], "longer": true}')
    assert files_of(cases.cases, CacheConfig()) != before
    (tmp_path / "imagesTr/cell.json").write_text('{"made by": "a microscope"}')
    assert read_image(cases.cases[0]).spacing == (1.0, 1.0, 1.0)
    for wrong in ('{"spacing": [3, 0, 1]}', '{"spacing": 3}', '{"spac'):
        (tmp_path / "imagesTr/cell.json").write_text(wrong)
        with pytest.raises(ValueError, match=r"cell.json: .*(three lengths in mm|read as the spacing)"):
            read_image(cases.cases[0])


def test_a_remote_set_without_a_list_is_refused(tmp_path: Path) -> None:
    place = FileLocator(folder=tmp_path, url="https://example.org/set", remote_dir=tmp_path)
    with pytest.raises(ValueError, match="lists no files, which a remote source must"):
        read_nnunet(tmp_path / "dataset.json", {**HEAD, "file_ending": ".nii.gz"}, place)


def test_regions(tmp_path: Path) -> None:
    cases = load_case_set(raw_set(tmp_path, labels=BRATS, regions_class_order=[1, 2, 3]))
    assert cases.labels == {0: "background", 1: "value_1", 2: "value_2", 3: "enhancing"}
    assert cases.regions == {"whole tumour": (1, 2, 3), "tumour core": (2, 3), "enhancing": (3,)}
    assert list(cases.regions) == ["whole tumour", "tumour core", "enhancing"]
    assert cases.region_values == {"whole tumour": 1, "tumour core": 2, "enhancing": 3}
    alone = load_case_set(raw_set(tmp_path, labels={"background": 0, "PZ": [1], "TZ": 2}))
    assert (alone.labels, alone.regions) == ({0: "background", 1: "PZ", 2: "TZ"}, {})


def test_the_label_to_ignore_is_no_class(tmp_path: Path) -> None:
    cases = load_case_set(raw_set(tmp_path, labels={"background": 0, "PZ": 1, "ignore": 2}))
    assert (cases.labels, cases.ignore) == ({0: "background", 1: "PZ"}, 2)
    label = read_label(cases.cases[0], cases.labels, read_image(cases.cases[0]), cases.ignore)
    assert np.unique(label).tolist() == [IGNORED]
    cases = load_case_set(raw_set(tmp_path, labels={**BRATS, "ignore": 4}, regions_class_order=[1, 2, 3]))
    assert (cases.ignore, list(cases.regions)) == (4, ["whole tumour", "tumour core", "enhancing"])
    assert 4 not in cases.labels
    assert load_case_set(raw_set(tmp_path)).ignore is None


V1 = {"channel_names": None, "file_ending": None, "modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "bg", "1": "a"}}
V1_ENTRIES = [
    {"image": f"./imagesTr/prostate_0{number}.nii.gz", "label": f"./labelsTr/prostate_0{number}.nii.gz", "fold": number}
    for number in range(2)
]
FIRST_CHANNELS = [{**entry, "image": entry["image"].replace(".nii", "_0000.nii")} for entry in V1_ENTRIES]


@pytest.mark.parametrize(
    ("changes", "folds"),
    [
        (V1 | {"training": V1_ENTRIES}, True),
        ({"training": V1_ENTRIES}, True),
        ({"training": FIRST_CHANNELS}, True),
        ({"training": []}, False),
        ({"training": ["./imagesTr/prostate_00.nii.gz"]}, False),
        ({"file_ending": "nii.gz"}, False),
        ({"labels": {"background": "0", "PZ": "1", "TZ": "2"}}, False),
    ],
    ids=["v1", "v2-named", "v2-numbered", "v2-empty", "v2-names", "no-dot", "text-values"],
)
def test_a_list_that_names_cases_rather_than_files(tmp_path: Path, changes: dict[str, Any], folds: bool) -> None:
    plain = load_case_set(raw_set(tmp_path))
    cases = load_case_set(listed(tmp_path, **changes))
    assert (cases.cases, cases.channels) == (plain.cases, ("T2", "ADC"))
    assert sorted(cases.labels) == [0, 1, 2] if changes.get("labels") is not V1["labels"] else [0, 1]
    assert cases.folds == ({"prostate_00": 0, "prostate_01": 1} if folds else {})
    (tmp_path / "imagesTr/prostate_01_0001.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"case prostate_01 has .* need .*prostate_01_0001\.nii\.gz"):
        load_case_set(tmp_path)


def test_numbered_patients_of_several_modalities_are_no_channels(tmp_path: Path) -> None:
    names = ("case_0000", "case_0001")
    for name in names:
        volume(tmp_path / f"imagesTr/{name}.nii.gz")
        volume(tmp_path / f"labelsTr/{name}.nii.gz", value=1)
    entries = [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names]
    described = V1 | {"modality": {"0": "A", "1": "B"}, "training": entries}
    listing = find_listing(listed(tmp_path, **described))
    assert [case.id for case in listing.cases] == list(names)
    assert [[path.stem for path in case.image] for case in listing.cases] == [[f"{name}.nii"] for name in names]


def test_cases_that_a_left_over_list_lacks_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw_set(tmp_path, training=V1_ENTRIES[1:])
    assert [case.id for case in load_case_set(tmp_path).cases] == ["prostate_01"]
    assert "leaves out 1 cases of imagesTr" in caplog.text
    assert "prostate_00_0000.nii.gz" in caplog.text


def test_label_values_that_are_text(tmp_path: Path) -> None:
    labels = {"background": "0", "whole": ["1", "2"], "core": "2", "ignore": " 3 "}
    cases = load_case_set(raw_set(tmp_path, labels=labels, regions_class_order=["1", "2"]))
    assert cases.regions == {"whole": (1, 2), "core": (2,)}
    assert (cases.region_values, cases.ignore) == ({"whole": 1, "core": 2}, 3)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"channel_names": None}, 'has no "channel_names"'),
        ({"labels": None}, 'has no "labels"'),
        ({"dataset": {}}, 'lists its cases under "dataset"; write them as a list "training"'),
        ({"labels": {"background": 0, "a": 1, "ignore": 1}}, 'the label "ignore" has the value 1, and so has "a"'),
        ({"labels": {**BRATS, "ignore": 2}, "regions_class_order": [1, 2, 3]}, 'so has "whole tumour"; give it the'),
        ({"labels": {"background": 0, "a": 1, "ignore": [2, 3]}}, r'label "ignore" is \[2, 3\]; give it one value'),
        ({"labels": {"background": 0, "a": 1, "ignore": -1}}, 'label "ignore" is -1; give it one value, above the'),
        ({"labels": {"background": 0, "a": 1, "ignore": 0}}, 'label "ignore" is 0; give it one value, above the'),
        ({"labels": {"background": 0, "a": 1, "ignore": 2.5}}, 'label "ignore" is 2.5; give it one value, above the'),
        ({"labels": {"background": 0, "a": [0, 1]}}, 'the region "a" holds the background'),
        ({"labels": {"background": 0, "a": ["x"]}}, r'label "a" is \[\'x\'\]; give'),
        ({"labels": {"background": 0, "a": []}}, r'label "a" is \[\]; give'),
        ({"labels": BRATS, "regions_class_order": [1, 2]}, r'"regions_class_order" is \[1, 2\], but the 3 regions'),
        ({"labels": BRATS, "regions_class_order": [3, 1, 2]}, 'need one of their own label values each'),
        ({"numTraining": 3}, '"numTraining" is 3, but 2 training cases were found'),
        ({"file_ending": ".npy"}, r'"file_ending" is ".npy", but the kinds read are .nii.gz'),
        ({"channel_names": {"0": "T2"}}, r"case prostate_00 has prostate_00_0000.nii.gz, prostate_00_0001.nii.gz of"),
        ({"channel_names": {"0": "A", "1": "B", "2": "C"}}, r"names the channels A, B, C, .*prostate_00_0002.nii.gz"),
    ],
)  # fmt: skip
def test_bad_dataset_json(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    folder = raw_set(tmp_path)
    with pytest.raises(ValueError, match=what):
        load_case_set(listed(folder, **changes))


def test_a_channel_that_one_case_lacks(tmp_path: Path) -> None:
    folder = raw_set(tmp_path)
    (folder / "imagesTr/prostate_01_0000.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"case prostate_01 has prostate_01_0001.nii.gz"):
        load_case_set(folder)


def test_label_maps_and_images_that_lack_each_other(tmp_path: Path) -> None:
    folder = raw_set(tmp_path)
    moved = (folder / "labelsTr/prostate_01.nii.gz").rename(folder / "labelsTr/prostate_09.nii.gz")
    with pytest.raises(ValueError, match=r"2 images have no label map .*: prostate_01_0000.nii.gz"):
        load_case_set(folder)
    volume(folder / "labelsTr/prostate_01.nii.gz")
    with pytest.raises(ValueError, match=r"1 label maps have no image .*: prostate_09.nii.gz"):
        load_case_set(folder)
    moved.rename(folder / "labelsTr/whole.nii.gz")
    volume(folder / "imagesTr/whole.nii.gz")
    with pytest.raises(ValueError, match=r"case whole has whole.nii.gz .*whole_0000.nii.gz"):
        load_case_set(folder)
