"""The page as a whole: its parts, its safety, its weight, and what it leaves alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from hasten.report.page import run_sections, write_report
from hasten.report.read import read_run
from tests.report.page_text import PageText

MakeRun = Callable[..., Path]


def page_of(runs: list[Path], out: Path) -> PageText:
    return PageText(write_report(runs, out).read_text(encoding="utf-8"))


def test_one_run_has_every_section_in_order(make_run: MakeRun, tmp_path: Path) -> None:
    page = page_of([make_run()], tmp_path / "page.html")
    assert page.headings == [
        "Loss and Dice",
        "Where the time went",
        "Example slices",
        "Accelerators",
        "Decided from the data",
        "Environment",
        "Configuration",
    ]
    assert page.tags["svg"] == 2
    assert page.tags["figure"] == 2
    assert page.tags["script"] == 0
    assert max(page.ids.values()) == 1
    for text in (
        "Mean Dice 0.878 after 400 steps and 94 s, ",
        " 0.87 after 70 s; 1.6 % of the step time",
        "target reached",
        "Anterior",
        "Posterior",
        "fastest of 4 measured: 194 ms against 314 ms",
        "would take 41 s and save 12 s in 400 steps",
        "40, 56, 40",
        "the 90th percentile of the shapes, in multiples of 8",
        "some CPU",
        "ram_bytes: 8589934592",
        "learning_rate: 0.003",
    ):
        assert text in " ".join(page.text.split()), text


def test_a_comparison_says_that_scores_are_of_other_cases(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("a"), make_run("b"), make_run("c")]
    assert "Not of the same cases" not in write_report(folders, tmp_path / "a.html").read_text()
    (folders[2] / "run.yaml").write_text("data: {source: data/nuclei}")
    shorter = {"shorter validation": {"on": True, "reason": "8 of 52 cases"}}
    folders[1] = make_run("d", summary={"accelerators": shorter})
    text = page_of(folders, tmp_path / "b.html").text
    assert f"hippocampus ({folders[2]}) has another data.source than hippocampus ({folders[0]})" in text
    assert f"hippocampus ({folders[1]}): the validation is shortened to 8 of 52 cases." in text
    assert text.count("another data.") == 1


def test_the_page_stands_alone_and_changes_nothing(make_run: MakeRun, tmp_path: Path) -> None:
    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend(auto_select=False)
    loaded = "matplotlib.pyplot" in sys.modules
    runs = [make_run("a"), make_run("b")]
    html = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert write_report(runs, tmp_path / "new" / "page.html").read_text(encoding="utf-8") == html
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend(auto_select=False) == backend
    assert ("matplotlib.pyplot" in sys.modules) == loaded
    assert "://" not in html
    assert "@import" not in html
    page = PageText(html)
    assert page.tags["link"] == page.tags["script"] == page.tags["iframe"] == 0
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("#", "data:image/png;base64,")), value
    # References inside the figures resolve.
    wanted = {value[1:] for name, value in page.attributes if name in ("href", "xlink:href")}
    wanted |= {match for _, value in page.attributes for match in re.findall(r"url\(#([^)]+)\)", value)}
    assert wanted
    assert wanted <= set(page.ids)


def test_text_of_a_run_is_inert(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&$x$_{{ 7 * 7 }}"
    folder = make_run(name=evil, summary={"accelerators": {evil: {"on": True, "reason": evil}}, "status": evil})
    lines = [{"kind": "validation", "step": 1, "time_s": 1.0, "dice": 0.5, "dice_per_class": {evil: 0.5}}]
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    plan = {
        "fingerprint": {"labels": {"0": "background", "1": evil}},
        "decisions": {evil: {"value": evil, "reason": evil}},
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "env.json").write_text(json.dumps({evil: [evil]}))
    (folder / "run.yaml").write_text(f"name: {evil}")
    arrays = dict(np.load(folder / "examples.npz"))
    arrays["name_0"] = np.array(evil)
    np.savez(folder / "examples.npz", **arrays)
    other = make_run("other", name=evil)
    for runs, least in (([folder], 12), ([folder, other], 2)):
        page = page_of(runs, tmp_path / "page.html")
        assert page.tags["script"] == 0
        assert page.text.count(evil) >= least
        assert not [name for name, _ in page.attributes if name.startswith("on")]


@pytest.mark.parametrize("part", ["summary.json", "metrics.jsonl", "plan.json", "env.json", "run.yaml", "examples.npz"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b'{"a": {"b": [null]}}'])
def test_a_missing_or_damaged_part_is_named(
    make_run: MakeRun, tmp_path: Path, part: str, content: bytes | None
) -> None:
    folder = make_run()
    if content is None:
        (folder / part).unlink()
    else:
        (folder / part).write_bytes(content)
    page = page_of([folder], tmp_path / "page.html")
    assert len(page.headings) == 7
    # An object without any field that is read leaves nothing to say.
    if part == "examples.npz" or content is None or not content.startswith(b"{"):
        assert f"{part}" in page.text.split("Loss and Dice")[0]


def test_a_status_and_the_parts_of_the_time_are_words(make_run: MakeRun, tmp_path: Path) -> None:
    seconds = {"read_plan": 3.0, "wait_for_data": 1.0, "train": 5.0, "total": 9.0}
    page = page_of([make_run(summary={"status": "time_up", "seconds": seconds})], tmp_path / "page.html")
    for text in ("time is up", "read and plan 3", "wait for data 1"):
        assert text in " ".join(page.text.split()), text


def test_a_run_in_progress_shows_what_there_is(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(final=0.8)
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(lines + '{"kind": "train", "st')
    page = page_of([folder], tmp_path / "page.html")
    text = " ".join(page.text.split())
    assert "the target of 0.87 not reached yet" in text
    assert "The run is in progress." in text
    assert "metrics.jsonl: 1 of 101 lines cannot be read." in text
    assert page.tags["svg"] == 2


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"empty: holds neither summary\.json nor metrics\.jsonl"):
        write_report([empty], tmp_path / "page.html")
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")
    with pytest.raises(ValueError, match="at least one"):
        write_report([], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_several_runs_are_compared_with_the_first(make_run: MakeRun, tmp_path: Path) -> None:
    slow, fast = make_run("slow", name="slow", speed=2.0), make_run("fast", name="fast", speed=8.0)
    short = make_run("short", name="short", steps=100, final=0.7)
    page = page_of([slow, fast, short], tmp_path / "page.html")
    text = " ".join(page.text.split())
    # Validation 15 of 20, at step 300, is the first above 0.87: 10 s + 300 / speed + 0.5 s.
    assert "fast reached mean Dice 0.87 first, after 48 s." in text
    assert "3.34×" in text  # 160.5 s / 48 s
    assert "not reached" in text
    assert page.tags["table"] == page.tags["svg"] == 1
    assert max(page.ids.values()) == 1


def test_regions_have_their_curves_in_the_order_of_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    scores = {"whole tumour": 0.9, "core": 0.8, "an enhancing part": 0.7}
    lines = [
        {"kind": "validation", "step": step, "time_s": float(step), "dice": 0.8, "dice_per_class": scores}
        for step in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = [key.name for key in run_sections(read_run(folder))[0].charts[0].keys]
    assert keys == ["Mean", *scores, "Target"]
