from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.report import figures


def line(count: int, color: str = "--c1") -> figures.Line:
    return figures.Line(points=[(float(i), 1.0 / (i + 1)) for i in range(count)], color=color)


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))


def test_text_stays_text_and_colours_are_the_pages() -> None:
    svg = figures.line_chart([line(5), line(5, "--ink")], id_prefix="p", describe="d", level=0.5)
    assert "Time since the start (s)" in [element.text for element in parsed(svg).iter("text")]
    assert "var(--c1)" in svg
    assert "var(--ink)" in svg
    assert "font-family" not in svg
    assert "<style" not in svg
    # What is left without a variable could not follow the page into the dark.
    assert not re.search(r"#[0-9a-f]{6}\b", svg)


@given(count=st.integers(1, 2000))
@settings(max_examples=50, deadline=None)
def test_thinning_keeps_the_mean_and_the_range(count: int) -> None:
    values = [float(i % 7) for i in range(count)]
    thin = [y for _, y in figures._thin([(value, value) for value in values])]
    assert len(thin) <= figures.MAX_POINTS
    assert min(values) <= min(thin) <= max(thin) <= max(values)
    size = -(-count // figures.MAX_POINTS)
    sizes = [min(size, count - start) for start in range(0, count, size)]
    assert sum(value * weight for value, weight in zip(thin, sizes, strict=True)) == pytest.approx(sum(values))


def test_graphs_are_over_any_quantity() -> None:
    line = figures.Line(points=[(1, 1.0), (2, 1.9), (8, 6.0)], color="--c1", spread=[(1, 1), (1.8, 2), (5, 7)])
    ideal = figures.Line(points=[(0, 0), (8, 8)], color="--muted", dashed=True)
    svg = figures.line_chart(
        [line, ideal], x_label="Workers", id_prefix="p", describe="<d>", ticks=[1, 2, 8], level=0.8
    )
    assert parsed(svg).attrib["aria-label"] == "<d>"
    texts = [element.text for element in parsed(svg).iter("text")]
    assert "Workers" in texts
    assert [text for text in texts if text in ("1", "2", "8")][:3] == ["1", "2", "8"]
    assert svg.count("stroke-dasharray") == 2
    assert not re.search(r"#[0-9a-f]{6}\b", svg)


def test_a_strip_has_a_row_for_each_group() -> None:
    groups = [(1, "--c1", [0.5]), (3, "--c2", [0.9, 0.1, 0.2])]
    svg = figures.strip_chart(groups, x_label="Dice", describe="Dice by class")
    assert {"1", "3", "Dice"} <= {element.text for element in parsed(svg).iter("text")}
    dots = [len(re.findall(rf"<use [^>]*var\(--c{row}\)", svg)) for row in (1, 2)]
    assert dots == [1, 3]
