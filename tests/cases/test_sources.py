from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from hasten.cases.sources import find_listing, load_case_set, with_classes

DECLARED = {"0": "background", "1": "spleen"}


def volume(path: Path, shape: tuple[int, ...] = (4, 5, 6), value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(np.full(shape, value, np.uint8), np.eye(4)), path)


def picture(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((5, 6), value, np.uint8)).save(path)


def decathlon(folder: Path, names: tuple[str, ...] = ("a", "b"), **changes: Any) -> Path:
    for name in names:
        volume(folder / f"imagesTr/{name}.nii.gz")
        volume(folder / f"labelsTr/{name}.nii.gz", value=1)
    content: dict[str, Any] = {
        "name": "Set",
        "modality": {"0": "CT"},
        "labels": DECLARED,
        "training": [{"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names],
        "test": ["./imagesTs/gone.nii.gz"],
    } | changes
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def test_decathlon_folder_and_file(tmp_path: Path) -> None:
    decathlon(tmp_path)
    cases = load_case_set(tmp_path)
    assert cases == load_case_set(tmp_path / "dataset.json") == load_case_set(str(tmp_path), spatial_dims=3)
    assert (cases.name, cases.modality, cases.channels, cases.spatial_dims) == ("Set", "CT", ("CT",), 3)
    assert cases.source == tmp_path / "dataset.json"
    assert cases.labels == {0: "background", 1: "spleen"}
    assert [case.id for case in cases.cases] == ["a", "b"]
    assert cases.cases[0].image == (tmp_path / "imagesTr/a.nii.gz",)
    assert cases.cases[0].label == tmp_path / "labelsTr/a.nii.gz"


def test_labels_that_a_decathlon_list_does_not_declare_are_found(tmp_path: Path) -> None:
    folder = decathlon(tmp_path, labels=None)
    assert load_case_set(folder).labels == {0: "background", 1: "class_1"}
    (folder / "labels.json").write_text(json.dumps(DECLARED))
    assert load_case_set(folder / "dataset.json").labels == {int(value): name for value, name in DECLARED.items()}


def test_channels_in_one_file(tmp_path: Path) -> None:
    decathlon(tmp_path, modality={"0": "FLAIR", "1": "T1w"})
    volume(tmp_path / "imagesTr/a.nii.gz", (4, 5, 6, 2))
    assert load_case_set(tmp_path).channels == ("FLAIR", "T1w")


@pytest.mark.parametrize("folders", [("images", "labels"), ("imagesTr", "labelsTr")])
def test_pairs_by_name(tmp_path: Path, folders: tuple[str, str]) -> None:
    for name in ("x.1", "y"):
        volume(tmp_path / folders[0] / f"{name}.nii.gz")
        volume(tmp_path / folders[1] / f"{name}.nii", value=2)
    (tmp_path / folders[0] / "._y.nii.gz").write_bytes(b"left by an archiver")
    (tmp_path / folders[1] / "notes.txt").write_text("not a case")
    cases = load_case_set(tmp_path)
    assert [case.id for case in cases.cases] == ["x.1", "y"]
    assert cases.labels == {0: "background", 2: "class_1"}
    assert (cases.name, cases.channels, cases.modality) == (tmp_path.name, ("image",), "")
    (tmp_path / "labels.json").write_text('{"0": "background", "2": "nerve"}')
    assert load_case_set(tmp_path).labels == {0: "background", 2: "nerve"}


def test_names_that_look_like_channels_but_are_cases(tmp_path: Path) -> None:
    for name in ("s_0000", "s_0001"):
        picture(tmp_path / f"images/{name}.png")
        picture(tmp_path / f"labels/{name}.png", 1)
    assert [case.id for case in load_case_set(tmp_path).cases] == ["s_0000", "s_0001"]


def write_list(folder: Path, content: Any) -> Path:
    for name in ("a", "b", "b2"):
        volume(folder / f"files/{name}.nii.gz")
    volume(folder / "files/seg.nii.gz", value=4)
    (folder / "list.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / "list.json"


def test_json_list(tmp_path: Path) -> None:
    cases = [
        {"id": 0, "image": ["files/b.nii.gz", "files/b2.nii.gz"], "label": "files/seg.nii.gz"},
        {"image": [str(tmp_path / "files/a.nii.gz")] * 2, "label": "files/seg.nii.gz"},
    ]
    result = load_case_set(write_list(tmp_path, cases))
    assert (result.name, result.channels, result.labels) == (
        "list",
        ("image_0", "image_1"),
        {0: "background", 4: "class_1"},
    )
    assert [case.id for case in result.cases] == ["0", "a"]
    assert result.cases[0].image == (tmp_path / "files/b.nii.gz", tmp_path / "files/b2.nii.gz")
    assert result.cases[1].image[0] == tmp_path / "files/a.nii.gz"
    declared = load_case_set(write_list(tmp_path, {"labels": {"0": "background", "4": "x"}, "cases": cases}))
    assert declared.labels == {0: "background", 4: "x"}
    assert declared.cases == result.cases


def test_cases_that_a_list_holds_out(tmp_path: Path) -> None:
    entries = [{"image": f"files/{name}.nii.gz", "label": "files/seg.nii.gz"} for name in ("a", "b", "b2")]
    parts = ["train", "Validation", "test"]
    write_list(tmp_path, [{**entry, "split": part} for entry, part in zip(entries, parts, strict=True)])
    lines = [f"{entry['image']},{entry['label']},{part}" for entry, part in zip(entries, parts, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    monai = {"training": entries[:1], "validation": entries[1:2], "test": entries[2:]}
    (tmp_path / "monai.json").write_text(json.dumps(monai))
    short = {"train": entries[:1], "val": entries[1:2], "testing": [{"image": "gone.nii.gz"}]}
    (tmp_path / "short.json").write_text(json.dumps(short))
    unlabelled = [*lines[:2], "files/gone.nii.gz,,test"]
    (tmp_path / "unlabelled.csv").write_text("\n".join(["Image,Label,Split", *unlabelled]))
    marked = [line.removesuffix("train") for line in lines]
    (tmp_path / "marked.csv").write_text("\n".join(["image,label,split", *marked]))
    for name in ("list.json", "list.csv", "monai.json", "short.json", "unlabelled.csv", "marked.csv"):
        cases = load_case_set(tmp_path / name)
        assert [case.id for case in cases.cases] == ["a", "b"]
        assert cases.held_out == ("b",)


@pytest.mark.parametrize(
    ("written", "folds"),
    [
        ([0, 1, 2], {"a": 0, "b": 1, "b2": 2}),
        (["3", " 1", "01"], {"a": 3, "b": 1, "b2": 1}),
        ([1.0, None, ""], {"a": 1}),
        (["1.0", "2.", float("nan")], {"a": 1, "b": 2}),
    ],
)
def test_folds_of_a_list(tmp_path: Path, written: list[Any], folds: dict[str, int]) -> None:
    names = ("a", "b", "b2")
    entries = [
        {"image": f"files/{name}.nii.gz", "label": "files/seg.nii.gz", "fold": fold}
        for name, fold in zip(names, written, strict=True)
    ]
    write_list(tmp_path, entries)
    monai = {"training": entries, "testing": [{"image": "files/gone.nii.gz"}]}
    (tmp_path / "monai.json").write_text(json.dumps(monai))
    texts = ["" if fold is None or fold != fold else str(fold) for fold in written]
    rows = [f"{entry['image']},{entry['label']},{text}" for entry, text in zip(entries, texts, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["image,label,Fold", *rows]))
    for name in ("list.json", "monai.json", "list.csv"):
        assert load_case_set(tmp_path / name).folds == folds


def test_csv_list(tmp_path: Path) -> None:
    write_list(tmp_path, [])
    path = tmp_path / "table.csv"
    rows = [
        "\ufeffID, image,label,site",
        "k1,files/a.nii.gz ; files/b.nii.gz,files/seg.nii.gz,9",
        "",
        ",files/b2.nii.gz;files/b.nii.gz,files/seg.nii.gz,",
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    cases = load_case_set(path)
    assert [case.id for case in cases.cases] == ["k1", "b2"]
    assert cases.cases[0].image == (tmp_path / "files/a.nii.gz", tmp_path / "files/b.nii.gz")
    assert cases.cases[0].label == tmp_path / "files/seg.nii.gz"
    assert cases.channels == ("image_0", "image_1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("image,mask\na,b\n", r'no column "label" \(.*\[\'image\', \'mask\'\]\)'),
        ("", 'no column "image"'),
        ("image,label\nx.nii.gz\n", "line 2: has 1 fields"),
        ("image,label\nfiles/a.nii.gz,\n", 'line 2: "label" must name'),
        ("image,label\n,files/seg.nii.gz\n", 'line 2: "image" must name'),
        ("image,label\n", "lists 0 cases"),
        (
            "image,label,split\nfiles/a.nii.gz,files/seg.nii.gz,2\n",
            "line 2: \"split\" is '2'; write train, val or test",
        ),
        ("image,image,label\na,b,c\n", "has several columns 'image'; rename or remove"),
        (f"image,label\na,{'b' * 200_000}\n", "is not valid CSV near line 2 .*; correct it there"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, what: str) -> None:
    write_list(tmp_path, [])
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(ValueError, match=what) as error:
        load_case_set(tmp_path / "table.csv")
    assert "table.csv" in str(error.value)


GOOD = {"image": "files/a.nii.gz", "label": "files/seg.nii.gz"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('[\n {"image" "a"}\n]', "not valid JSON at line 2, column 11"),
        ([], "lists 0 cases"),
        ({"labels": DECLARED}, "must have one list of"),
        ([7], r"cases\[0\]: must be"),
        ([{"image": "files/a.nii.gz"}], r'cases\[0\]: "label" must name'),
        ([{"image": 3, "label": "x"}], r'cases\[0\]: "image" must name'),
        ([{"image": [], "label": "x"}], r'cases\[0\]: "image" must name'),
        *(
            ([{**GOOD, "id": wrong}], r"cases\[0\]: the id .*file name, .*rename it")
            for wrong in ("../x", "a\\b", "..", "a\0b", "a" * 201, [1])
        ),
        ([{**GOOD, "image": "a" * 256 + ".png"}], r"cases\[0\]: 'aaa.* too long .*; use a shorter"),
        ([{**GOOD, "split": "fit"}], r'cases\[0\]: "split" is .*; write train, val or test'),
        ([{**GOOD, "split": "train"}, {**GOOD, "id": "b"}], 'list.json: 1 cases have no "split", and others have: b;'),
        *(
            ([{**GOOD, "fold": fold}], r'cases\[0\]: "fold" is .*; number the folds 0, 1, 2')
            for fold in ("A", -1, 1.5, [0], True)
        ),
        ({"cases": [GOOD], "validation": [GOOD]}, 'must have one list of .* "split": train, val or test'),
        ([{**GOOD, "label": GOOD["image"]}], r"1 cases .*image and as label: .*a\.nii\.gz"),
        ("[" * 100_000, "is no list of cases"),
        ([GOOD, GOOD], "1 case ids occur more than once: a; "),
        (
            [{**GOOD, "image": f"n{i}.nii.gz"} for i in range(5)],
            r"5 image files do not exist: .*n0.* and 2 more; restore",
        ),
        ([{**GOOD, "label": "none.nii.gz"}], r"1 label files do not exist: .*none.nii.gz; restore"),
        ({"labels": {"0": "background"}, "cases": [GOOD]}, "only the background"),
    ],
)
def test_bad_json_list(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        load_case_set(write_list(tmp_path, content))
    assert "list.json" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"training": None}, 'must have one list of .* "training"'),
        ({"training": {"a": 1}}, '"training" must be a list'),
        ({"training": []}, "lists 0 cases"),
        ({"modality": {"x": "CT"}}, '"modality" must map channel numbers'),
        ({"modality": [[1]]}, '"modality" must map channel numbers'),
        ({"modality": {"9" * 5000: "CT"}}, '"modality" must map channel numbers'),
        ({"modality": {"0": "T1", "1": "T2"}}, "has 1 channels, but .* names 2: T1, T2"),
    ],
)
def test_bad_decathlon(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        load_case_set(decathlon(tmp_path, **changes))
    assert "dataset.json" in str(error.value)


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    for name in ("pipe", "pipe.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name}: is a device or a pipe, .* name a regular file"):
            load_case_set(tmp_path / name)


def test_bad_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no known layout: a dataset.json, images/ .* found nothing"):
        load_case_set(tmp_path)
    (tmp_path / "scans").mkdir()
    with pytest.raises(ValueError, match=r"found scans/. Rename"):
        load_case_set(tmp_path)
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="lists 0 cases"):
        load_case_set(tmp_path)
    volume(tmp_path / "images/a.nii.gz")
    with pytest.raises(ValueError, match=r"1 images .*no label map .*labels/: a.nii.gz; give both"):
        load_case_set(tmp_path)
    volume(tmp_path / "labels/a.nii.gz")
    volume(tmp_path / "labels/b.nii.gz")
    with pytest.raises(ValueError, match=r"1 label maps .*no image .*images/: b.nii.gz; add"):
        load_case_set(tmp_path)
    volume(tmp_path / "labels/a.nii")
    with pytest.raises(ValueError, match=r"a.nii and a.nii.gz share a name"):
        load_case_set(tmp_path)


def test_bad_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone: does not exist"):
        load_case_set(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"data.source is empty"):
        load_case_set("")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"a.txt: is no source of cases"):
        load_case_set(tmp_path / "a.txt")


def test_declared_dimension(tmp_path: Path) -> None:
    decathlon(tmp_path)
    with pytest.raises(ValueError, match=r"a.nii.gz: is a 3-D image .* data.spatial_dims is 2; set"):
        load_case_set(tmp_path, spatial_dims=2)
    for name in ("images", "labels"):
        picture(tmp_path / f"flat/{name}/p.png", 1)
    with pytest.raises(ValueError, match=r"p.png: is a 2-D image .* data.spatial_dims is 3; set"):
        load_case_set(tmp_path / "flat", spatial_dims=3)


def test_mixed_dimensions(tmp_path: Path) -> None:
    volume(tmp_path / "images/a.nii.gz")
    picture(tmp_path / "images/b.png")
    for name in ("a", "b"):
        volume(tmp_path / f"labels/{name}.nii.gz", value=1)
    with pytest.raises(ValueError, match=r"b.png: is a 2-D picture, .*a.nii.gz, is 3-D"):
        load_case_set(tmp_path)


def test_a_file_of_several_cases_is_pointed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cases = [{"image": f"files/{name}.nii.gz", "label": "files/seg.nii.gz"} for name in ("a", "b")]
    load_case_set(write_list(tmp_path, cases))
    (record,) = caplog.records
    assert re.search(r"list\.json: 1 label files .*more than once: .*seg\.nii\.gz;", record.getMessage())


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (None, {0: "background", 1: "spleen"}),
        (("background", "nucleus"), {0: "background", 1: "nucleus"}),
        ({"nucleus": 255}, {0: "background", 255: "nucleus"}),
        ({"rest": 0, "a": 3, "b": 1}, {0: "rest", 1: "b", 3: "a"}),
    ],
)
def test_classes_of_the_settings(tmp_path: Path, classes: Any, labels: dict[int, str]) -> None:
    listing = find_listing(decathlon(tmp_path))
    assert with_classes(listing, classes).labels == labels
    with pytest.raises(ValueError, match=r"data\.classes: declares only the background"):
        with_classes(listing, ("nucleus",))
