from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cases.slide.listing import SlideCase, find_slides, split_slides


def folder(tmp_path: Path, slides: list[str], masks: list[str]) -> Path:
    for name, files in (("slides", slides), ("masks", masks)):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("parts", "validated"),
    [
        (["train", "train", "val", "train"], ["s2"]),
        (["", "", "valid", ""], ["s2"]),
        (["Training", "Validation", "test", "train"], ["s1"]),
        (["train", "train", "train", "testing"], ["s1"]),
        (["", "", "", ""], ["s1", "s3"]),
    ],
    ids=["words", "only-validation", "with-test", "none", "empty"],
)
def test_parts_have_the_words_of_other_lists(tmp_path: Path, parts: list[str], validated: list[str]) -> None:
    rows = [f"s{number}.tif,,{part}" for number, part in enumerate(parts)]
    for number in range(len(parts)):
        (tmp_path / f"s{number}.tif").touch()
    (tmp_path / "slides.csv").write_text("\n".join(["slide,mask,split", *rows]))
    train, validation = split_slides(find_slides(tmp_path), 0.5)
    assert [each.id for each in validation] == validated
    assert len(train) + len(validation) == 4 - sum(part.startswith("test") for part in parts)


def test_a_folder_pairs_by_name(tmp_path: Path) -> None:
    made = folder(tmp_path, ["a.tif", "b.svs", "normal_1.tif"], ["a_mask.tif", "b.xml"])
    result = find_slides(made)
    assert [(case.id, case.mask.name if case.mask else None) for case in result] == [
        ("a", "a_mask.tif"),
        ("b", "b.xml"),
        ("normal_1", None),
    ]


def test_a_slide_without_a_mask_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b.tif: has no mask .*b.tif or .xml; add it, or"):
        find_slides(folder(tmp_path, ["a.tif", "b.tif"], ["a.tif"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,mask\n", "names no slides"),
        ("slide,mask\n,x\n", "line 2: names no slide"),
        ("slide\ngone.tif\n", 'no column "mask"'),
        ("slide,mask\ngone.tif,\n", r"line 2: the slide .*gone.tif is not there"),
        ("slide,mask,split\nhere.tif,,tset\n", "line 2: \"split\" is 'tset'"),
        ("slide,mask\nhere.tif,gone.xml\n", r"line 2: the mask .*gone.xml is not there"),
        ("slide,mask\nhere.tif,\nhere.tif,\n", "several slides are called here"),
        ("slide,mask,split\nhere.tif,,train\nthere.tif,,\n", '1 cases have no "split", .*: there'),
    ],
    ids=["empty", "slide", "mask", "absent", "split", "absent-mask", "twice", "unsaid"],
)
def test_a_list_with_a_mistake_is_refused(tmp_path: Path, text: str, message: str) -> None:
    for name in ("here.tif", "there.tif"):
        (tmp_path / name).touch()
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_slides(tmp_path / "list.csv")


def case(name: str, *, mask: bool) -> SlideCase:
    return SlideCase(id=name, slide=Path(name), mask=Path("m") if mask else None)


def test_slides_are_split_within_each_kind() -> None:
    cases = tuple(case(f"{number}", mask=number < 8) for number in range(12))
    train, validation = split_slides(cases, 0.25)
    assert [each.id for each in validation] == ["3", "7", "11"]
    assert len(train) == 9
    with pytest.raises(ValueError, match="1 slides to train and 0 to validate on"):
        split_slides(cases[:1], 0.25)
