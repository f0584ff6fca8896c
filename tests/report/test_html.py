"""The page of a study: everything given is on it, nothing on it is alive, and it stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.report.figures import Line, line_chart
from hasten.report.html import write_page
from hasten.report.model import Bar, Chart, Note, Page, Section, Table, badge
from hasten.report.words import NBSP
from tests.report.page_text import PageText

EVIL = "<script>alert('x')</script>\"&{{ 7 * 7 }}"


def write(tmp_path: Path, *sections: Section, **changes: str) -> PageText:
    texts = {"title": "Doctor", "verdict": "The training is input-bound."} | changes
    page = Page(cards=(("Step", "194 ms", "of 40"),), sections=sections, **texts)
    return PageText(write_page(page, tmp_path / "page.html").read_text(encoding="utf-8"))


def test_everything_given_is_on_the_page(tmp_path: Path) -> None:
    figure = line_chart([Line(points=[(0, 1), (1, 2)], color="--c1")], id_prefix="f", describe="a line")
    page = write(
        tmp_path,
        Section(
            title="Where the time went",
            text="First paragraph.\n\nSecond one.",
            table=Table(("Finding", "Costs", "Cure"), (("No workers", "118 ms", "num_workers=2"),), numeric=(1,)),
            bar=Bar((("wait", 0.15), ("forward", 0.05))),
            charts=(Chart(figure),),
            note="Measured once.",
            pre="$ python train.py\n  step 1",
        ),
        Section(title="Nothing more"),
    )
    for text in (
        "Doctor", "The training is input-bound.", "Step", "194 ms", "of 40", "Where the time went", "No workers",
        "118 ms", "num_workers=2", "150 ms (75.0 %)", "50 ms (25.0 %)", "Measured once.", "$ python train.py\n  step 1",
        "Nothing more",
    ):  # fmt: skip
        assert text in page.text, text
    assert page.tags["svg"] == page.tags["table"] == page.tags["pre"] == 1
    assert page.tags["p"] == 4, "verdict, two paragraphs, a note"
    assert ("aria-label", f"200{NBSP}ms in all: wait 75.0{NBSP}%, forward 25.0{NBSP}%") in page.attributes


def test_text_is_inert(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        Section(
            title=EVIL, text=EVIL, note=EVIL, pre=EVIL,
            table=Table((EVIL, EVIL, EVIL), ((EVIL, EVIL, EVIL),)), bar=Bar(((EVIL, 1.0),), unit=EVIL),
        ),
        title=EVIL,
        verdict=EVIL,
    )  # fmt: skip
    assert page.tags["script"] == 0
    assert page.text.count(EVIL) == 15
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_it_reaches_for_nothing_outside_itself(tmp_path: Path) -> None:
    page = write(tmp_path, Section(title="A", bar=Bar((("x", 1.0),))))
    html = (tmp_path / "page.html").read_text()
    assert "://" not in html
    assert "@import" not in html
    assert page.tags["link"] == page.tags["script"] == page.tags["img"] == 0
    assert ("content", "default-src 'none'; img-src data:; style-src 'unsafe-inline'") in page.attributes


def test_an_old_page_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "deep" / "page.html"
    write_page(Page(title="old", verdict="v", sections=()), out)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(ValueError, match=r"page\.html: .*\(No space left on device\); name another"):
        write_page(Page(title="new", verdict="v", sections=()), out)
    assert "old" in out.read_text()
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_sections_lie_in_sections_with_badges_warnings_and_folded_tables(tmp_path: Path) -> None:
    inner = Section(
        EVIL, badge=badge(EVIL, "bad"), warning=Note("To know", (EVIL,)), charts=(Chart("", EVIL, note=EVIL),),
        table=Table(("Part", "State"), ((EVIL, badge("on", "good")),)), folded="1 row", id="inner",
    )  # fmt: skip
    page = write(tmp_path, Section("Outer", sections=(inner,)))
    assert page.tags["script"] == 0
    assert page.text.count(EVIL) == 6
    assert page.tags["details"] == page.tags["h3"] == page.tags["h4"] == page.tags["table"] == 1
    assert [value for name, value in page.attributes if name == "class" and value.startswith("badge")] == [
        "badge bad", "badge good",
    ]  # fmt: skip
