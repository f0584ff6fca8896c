"""The page's section about the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from hasten.report.page import machine_section, write_report
from hasten.report.read import read_monitor
from tests.observe.monitor.series import series, start, write

MakeRun = Callable[..., Path]


def html_of(folder: Path, tmp_path: Path) -> str:
    return write_report([folder], tmp_path / "page.html").read_text(encoding="utf-8").replace("\u00a0", " ")


def titles(folder: Path) -> list[str]:
    section = machine_section(read_monitor(folder, []))
    assert section is not None
    return [chart.title for chart in section.charts]


def test_the_section_is_absent_without_a_monitor_file(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    assert read_monitor(folder, []) is None
    assert "The machine" not in html_of(folder, tmp_path)
    (folder / "monitor.jsonl").write_text(json.dumps(start()) + "\n")  # nothing sampled yet
    assert "The machine" not in html_of(folder, tmp_path)


def test_gpu_and_host_over_time_with_alerts(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    samples = series(
        300,
        gpu=lambda t: {"util": 2.0 if t > 150 else 95.0, "power_w": 400.0, "temperature_c": 60.0},
    )
    write(folder / "monitor.jsonl", samples, before=[start()])
    assert titles(folder) == [
        "GPU utilisation (%)",
        "GPU memory (GiB)",
        "Power (W)",
        "Step time (ms)",
        "Processor, all cores (%)",
        "Host memory (GiB)",
    ]
    html = html_of(folder, tmp_path)
    for words in (
        "<h3>The machine</h3>",
        "GPU 0 was idle (below 10 %) for ",
        "of 31.2 GiB",
        "mean 500",
        "mean 400",
    ):
        assert words in html, words
    assert html.count('<svg class="figure"') == 2 + 6
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_without_a_gpu_the_host_alone_and_the_note(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    note = {"kind": "note", "text": "no GPU is recorded: no <script> was found"}
    write(folder / "monitor.jsonl", series(60, num_gpus=0), before=[start(), note])
    assert titles(folder) == ["Step time (ms)", "Processor, all cores (%)", "Host memory (GiB)"]
    assert "No GPU is recorded: no &lt;script&gt; was found." in html_of(folder, tmp_path)


def test_every_rank_has_its_lines(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    for rank in range(12):  # more than there are colours
        name = f"monitor-rank{rank}.jsonl" if rank else "monitor.jsonl"
        write(folder / name, series(60, step_s=0.5 if rank == 2 else 0.25), before=[start(rank=rank, world_size=12)])
    html = html_of(folder, tmp_path)
    assert "Rank 2 takes 500 ms a step and the others 250 ms" in html
    assert "GPU 0 (rank 3)" in html


def test_damaged_lines_are_skipped_with_a_note(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    path = write(folder / "monitor.jsonl", series(30), before=[start()])
    with path.open("ab") as file:
        file.write(b'nonsense\n{"kind": "sample"}\n\xff\xff\n{"kind": "sample", "time": 3')
    html = html_of(folder, tmp_path)
    assert "monitor.jsonl: 4 lines cannot be read." in html.split("Loss and Dice")[0]
    assert "The machine" in html
