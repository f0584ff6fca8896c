from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hasten.scaling.analyse import Analysis, analyse
from hasten.scaling.page import print_analysis, quality, table_of, write
from tests.scaling.studies import csv_log, entry, list_runs, run_folder


@pytest.fixture
def logs(tmp_path: Path) -> Analysis:
    folder = tmp_path / "logs"
    folder.mkdir()
    for world, seconds in ((1, 40.0), (2, 21.0), (4, 11.0)):
        csv_log(folder, f"log_{world}.csv", seconds, iou=0.9 - 0.03 * world)
        csv_log(folder, f"log_hvd_{world}.csv", 1.1 * seconds)
    return analyse(folder)


def test_the_page_stands_alone_and_says_all(logs: Analysis, tmp_path: Path) -> None:
    text = write(logs, tmp_path / "out").read_text()
    assert not re.search(r'(src|href)="?https?:', text)
    assert "<script" not in text
    for title in ("Speed-up and efficiency", "IoU against workers", "Loss against epochs", "Loss against accumulated"):
        assert title in text
    assert "doubtful" not in text
    assert text.count("<svg") == 7
    assert "native wins" in text
    assert "3.64x" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_table(logs: Analysis) -> None:
    table = table_of(logs)
    names, lines = table.columns, table.rows
    assert names == (
        "Strategy",
        "Workers",
        "Epoch",
        "Speed-up",
        "Ideal",
        "Efficiency",
        "Total",
        "Total speed-up",
        "IoU",
    )
    assert [text.replace("\u00a0", " ") for text in lines[2]] == [
        "native", "4", "11.0 s", "3.64x", "4x", "90.9 %", "72 s", "3.64x", "0.780",
    ]  # fmt: skip
    assert len(lines) == 6


def test_the_files(logs: Analysis, tmp_path: Path) -> None:
    page = write(logs, tmp_path / "out")
    assert page == tmp_path / "out" / "scaling.html"
    output = json.loads((tmp_path / "out" / "scaling.json").read_text())
    assert (output["baseline"], output["epoch"], output["metric"], len(output["runs"])) == (1, 4, "IoU", 6)
    four = next(one for one in output["points"] if (one["strategy"], one["world"]) == ("native", 4))
    assert four["speedup"] == pytest.approx(40 / 11)
    assert four["efficiency"] == pytest.approx(40 / 11 / 4)
    assert four["target_s"] is None


@pytest.mark.parametrize(
    ("pace", "others", "reason"), [(181.7, 0.0, "more than the ideal"), (18.0, 1.2, "used up to 1.2 cores")]
)
def test_a_speed_up_that_can_not_be_is_no_headline(tmp_path: Path, pace: float, others: float, reason: str) -> None:
    study = tmp_path / "study"
    run_folder(study / "one", samples_per_s=10.0, total_s=60)
    run_folder(study / "two", samples_per_s=pace, total_s=50)
    # Of the baseline, which the others slow down.
    list_runs(study, [entry("one", 1, others_cores=others), entry("two", 2)])
    analysis = analyse(study)
    quoted = f"{pace / 10:.2f}x"
    lines: list[str] = []
    print_analysis(analysis, lines.append)
    page = write(analysis, tmp_path / "out").read_text()
    two = next(one for one in json.loads((tmp_path / "out/scaling.json").read_text())["points"] if one["world"] == 2)
    assert (two["speedup"], two["efficiency"], two["total_speedup"]) == (None, None, None)
    assert two["measured_ratio"] == pytest.approx(pace / 10)
    assert reason in two["doubt"]
    for text in ("\n".join(lines), page):
        assert quoted not in text
        assert f"a ratio of {pace / 10:.2f} where 2 is ideal" in text
        assert reason in text


def test_a_folder_that_can_not_be_written(logs: Analysis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        write(logs, tmp_path / "file" / "out")


def test_several_seeds_and_doubts_are_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = []
    for world in (1, 2):
        for seed in (0, 1):
            name = f"{world}-{seed}"
            run_folder(tmp_path / name, samples_per_s=10.0 * world + seed, dice=(0.4, 0.8 + 0.01 * seed))
            entries.append(entry(name, world, seed=seed, threads=2 // world))
    list_runs(tmp_path, entries)
    analysis = analyse(tmp_path)
    text = write(analysis, tmp_path / "out").read_text()
    assert "What makes these figures doubtful" in text
    assert "To mean Dice 0.8" in text
    several, single = quality(analysis), quality(analyse_one(tmp_path / "single"))
    assert several is not None
    assert single is not None
    assert several.charts[0].svg.count("<path") > single.charts[0].svg.count("<path")
    said: list[str] = []
    print_analysis(analysis, said.append)
    table = capsys.readouterr().out
    assert "0.805 (0.800 to 0.810)" in table
    assert any(line.startswith("warning: All workers shared one machine of 2 cores") for line in said)


def analyse_one(folder: Path) -> Analysis:
    folder.mkdir()
    for world in (1, 2):
        csv_log(folder, f"log_{world}.csv", 20.0 / world)
    return analyse(folder)


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    for world in (1, 2):
        path = csv_log(tmp_path, f"log_{world}.csv", 20.0 / world, iou="nan")
        path.write_text(re.sub(r"(?m)^(\d+,[^,]+),[^,]+", r"\1,nan", path.read_text()))
    analysis = analyse(tmp_path)
    assert quality(analysis) is None
    assert "IoU" not in table_of(analysis).columns
    text = write(analysis, tmp_path / "out").read_text()
    assert "Loss against" not in text
