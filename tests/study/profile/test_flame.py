"""The flame view: what lies in what, as wide as it took, and text that can't break out of it."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from hasten.observe.ranges import BACKWARD, FORWARD
from hasten.study.profile.flame import flame_of, flame_svg
from hasten.study.profile.recording import MODULE, STEP, Node, ProfileRecording

SVG = "{http://www.w3.org/2000/svg}"


def node(name: str, begin: int, time: int, *children: Node) -> Node:
    return Node(name, "::" not in name, begin, time, list(children))


def recording(*main: Node) -> ProfileRecording:
    return ProfileRecording(main=list(main), backward=[], beside=[], device=Counter(), device_calls=Counter())


def step(begin: int) -> Node:
    conv = node(f"{MODULE}encoder.0.conv (Conv3d)", begin + 10, 20, node("aten::convolution", begin + 12, 16))
    apart = node(
        "autograd::engine::evaluate_function: MulBackward0", begin + 41, 50, node("MulBackward0", begin + 41, 49)
    )
    return node(STEP, begin, 100, node(FORWARD, begin, 40, conv), node(BACKWARD, begin + 40, 60, apart))


def test_calls_of_one_name_under_one_caller_are_one_box() -> None:
    whole = flame_of(recording(step(0), step(100)))
    assert (whole.time, list(whole.children)) == (200, [FORWARD, BACKWARD])
    forward = whole.children[FORWARD]
    assert (forward.time, forward.calls) == (80, 2)
    (conv,) = forward.children.values()
    assert (conv.name, conv.time, list(conv.children)) == ("conv (Conv3d)", 40, ["aten::convolution"])
    # Autograd's call of a function, and the function itself, are one.
    (back,) = whole.children[BACKWARD].children.values()
    assert (back.name, back.calls, back.children) == ("MulBackward0", 2, {})


def boxes(svg: str) -> dict[str, tuple[float, float, float]]:
    """(left, top, width) by name."""
    root = ElementTree.fromstring(svg)
    results = {}
    for box in root.findall(f"{SVG}svg"):
        title = box.findtext(f"{SVG}title") or ""
        left, width = (float(box.get(name, "").rstrip("%")) for name in ("x", "width"))
        results[title.rpartition(": ")[0]] = (left, float(box.get("y", "")), width)
    return results


def test_a_box_lies_under_its_caller_and_is_as_wide_as_it_took() -> None:
    result = boxes(flame_svg(flame_of(recording(step(0))), describe="all"))
    assert result["all"][2] == 100
    assert result[FORWARD] == (0, result["all"][1] + 22, 40)
    assert result[BACKWARD][:1] == (40,)
    assert result["aten::convolution"][2] == 16
    for inner, outer in (("conv (Conv3d)", FORWARD), ("MulBackward0", BACKWARD)):
        assert result[outer][0] <= result[inner][0]
        assert result[inner][0] + result[inner][2] <= result[outer][0] + result[outer][2] + 0.01
        assert result[inner][1] == result[outer][1] + 22


def test_names_are_text_and_slivers_are_left_out() -> None:
    svg = flame_svg(flame_of(recording(node('<b>&"evil"', 0, 10_000), node("sliver", 10_000, 1))), describe='a "b" <c>')
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'a "b" <c>'
    assert '<b>&"evil"' in boxes(svg)
    assert "sliver" not in svg
    assert not re.search(r"<b>", svg)


def test_children_that_overlap_their_caller_s_end_stay_inside() -> None:
    result = boxes(
        flame_svg(flame_of(recording(node("outer", 0, 100, node("a", 0, 80), node("b", 60, 80)))), describe="")
    )
    assert result["b"][0] + result["b"][2] <= 100.01


def test_nothing_is_still_a_drawing() -> None:
    assert ElementTree.fromstring(flame_svg(flame_of(recording()), describe="none")).get("height") == "22"
