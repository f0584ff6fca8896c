from __future__ import annotations

import re
from pathlib import Path

import pytest

from hasten.scaling.analyse import Analysis, Point, analyse
from tests.scaling.studies import csv_log, entry, list_runs, run_folder

REAL = Path(__file__).parents[3].parent / "shared/data/unet_scaling_logs"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no logs of the UNet study here")


def point(result: Analysis, strategy: str, world: int) -> Point:
    return next(one for one in result.points if (one.strategy, one.world) == (strategy, world))


@needs_real
def test_what_the_original_study_found() -> None:
    analysis = analyse(REAL)
    assert analysis.epoch == 4
    native, horovod = point(analysis, "native", 14), point(analysis, "horovod", 14)
    assert (round(native.speedup or 0, 2), round(horovod.speedup or 0, 2)) == (11.97, 6.01)
    assert (round(native.total_speedup or 0, 2), round(horovod.total_speedup or 0, 2)) == (11.96, 5.98)
    assert [len(one.points) for one in analysis.series] == [8, 8]
    iou = {one.world: round(one.metric.median, 3) for one in analysis.series[0].points if one.metric is not None}
    assert iou == {1: 0.900, 2: 0.898, 4: 0.884, 6: 0.852, 8: 0.868, 10: 0.781, 12: 0.802, 14: 0.924}
    output = " ".join(analysis.verdicts)
    assert "native wins (one run each): at 14 workers" in output
    assert "11.97x against 6.01x (total time 11.96x against 5.98x)" in output
    assert "native: IoU falls by 0.118 and 0.098 at 10 and 12 workers" in output
    assert "horovod: IoU falls by 0.115 and 0.106 at 10 and 12 workers" in output
    assert "one seed: can't be separated from noise" in output
    assert "native: efficiency stays above 80" in output
    assert "horovod: efficiency is under 80 % at 2, 4, 6, 8, 10, 12 and 14 workers" in output
    assert analysis.warnings == ()


@needs_real
def test_other_questions_to_the_same_logs() -> None:
    median = analyse(REAL, epoch="median")
    assert median.epoch is None
    assert point(median, "native", 14).speedup == pytest.approx(11.92, abs=0.01)
    assert point(analyse(REAL, baseline=2), "native", 14).ideal == 7.0
    output = " ".join(analyse(REAL, drop=0.2).verdicts)
    assert "IoU is nowhere more than 0.2 below 1 worker" in output
    six = " ".join(analyse(REAL, drop=0.04).verdicts)
    assert "native: IoU falls by 0.048, 0.118 and 0.098" in six


def scaled(folder: Path, name: str, times: dict[int, float], **fields: float) -> None:
    for world, seconds in times.items():
        csv_log(folder, name.format(world), seconds, **fields)


def test_efficiency_that_falls_and_recovers(tmp_path: Path) -> None:
    scaled(tmp_path, "log_{}.csv", {1: 80.0, 2: 55.0, 4: 22.0, 8: 20.0})
    (message,) = [text for text in analyse(tmp_path).verdicts if "efficiency" in text]
    assert message.startswith("native: efficiency is under 80 % at 2 and 8 workers")
    analysis = analyse(tmp_path)
    assert point(analysis, "native", 4).efficiency == pytest.approx(80 / 22 / 4)
    assert analysis.verdicts[0] == "native on 8 workers is 4.00x as fast, of 8x (total time 4.00x)."


def test_more_than_the_ideal_is_doubted(tmp_path: Path) -> None:
    scaled(tmp_path, "log_{}.csv", {1: 80.0, 2: 30.0})
    analysis = analyse(tmp_path)
    two = point(analysis, "native", 2)
    assert (two.speedup, two.efficiency, two.total_speedup) == (None, None, None)
    assert "more than the ideal" in two.doubt
    assert not any("x as fast" in text for text in analysis.verdicts)


def test_without_a_run_on_one_worker(tmp_path: Path) -> None:
    scaled(tmp_path, "log_{}.csv", {1: 80.0, 2: 40.0})
    scaled(tmp_path, "log_hvd_{}.csv", {2: 45.0, 4: 25.0})
    message = r"horovod with 1 worker, .*: 2, 4; native: 1, 2\).*--baseline 2"
    with pytest.raises(ValueError, match=message):
        analyse(tmp_path)
    analysis = analyse(tmp_path, baseline=2)
    assert point(analysis, "horovod", 4).ideal == 2.0
    assert point(analysis, "horovod", 4).speedup == pytest.approx(1.8)
    assert [one.world for one in analysis.points if one.strategy == "native"] == [2]
    (tmp_path / "log_2.csv").unlink()
    with pytest.raises(ValueError, match="train the strategies on one count that all have"):
        analyse(tmp_path, baseline=2)


def test_an_epoch_that_is_not_in_every_log(tmp_path: Path) -> None:
    csv_log(tmp_path, "log_1.csv", 10.0, epochs=6)
    csv_log(tmp_path, "log_2.csv", 5.0, epochs=3)
    with pytest.raises(ValueError, match=r"--epoch 3: .*\(log_2\.csv has 0 to 2, counted from 0\)"):
        analyse(tmp_path, epoch=3)
    assert analyse(tmp_path, epoch=2).epoch == 2
    # 4 is only what is compared where nothing is asked for.
    assert analyse(tmp_path).epoch is None


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((10.0, 20.0), "native wins (one run each): at 2 workers an epoch takes"),
        ((20.0, 10.0), "horovod wins (one run each)"),
        ((10.0, 10.1), "No winner can be told between native and horovod"),
    ],
)
def test_the_winner(tmp_path: Path, times: tuple[float, float], message: str) -> None:
    scaled(tmp_path, "log_{}.csv", {1: 20.0, 2: times[0]})
    scaled(tmp_path, "log_hvd_{}.csv", {1: 20.0, 2: times[1]})
    assert analyse(tmp_path).verdicts[0].startswith(message)


def seeded(folder: Path, one: list[float], two: list[float]) -> tuple[str, ...]:
    for world, values in ((1, one), (2, two)):
        for seed, iou in enumerate(values):
            csv_log(folder, f"log_{world}_seed{seed}.csv", 20.0 / world, iou=iou)
    return analyse(folder).verdicts


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ([0.90, 0.91, 0.89], [0.80, 0.82, 0.79], "falls by 0.100 at 2 workers .* beyond the seeds' noise"),
        ([0.90, 0.91, 0.70], [0.80, 0.82, 0.79], "within the seeds' noise"),
        ([0.90, 0.91], [0.80, 0.82], "2 seeds are too few to separate that from noise"),
        ([0.90, 0.91, 0.92], [0.80], "one seed: can't be separated from noise."),
        ([0.90, 0.91, 0.92], [0.89, 0.88, 0.90], "IoU is nowhere more than 0.05 below 1 worker."),
    ],
)
def test_a_fall_is_judged_by_the_seeds(tmp_path: Path, one: list[float], two: list[float], message: str) -> None:
    assert re.search(message, seeded(tmp_path, one, two)[-1])


def test_own_runs_share_the_run_of_one_process(tmp_path: Path) -> None:
    run_folder(tmp_path / "one", samples_per_s=10.0)
    run_folder(tmp_path / "ddp", samples_per_s=18.0, dice=(0.6, 0.85))
    run_folder(tmp_path / "fsdp", samples_per_s=15.0, dice=(0.4, 0.5))
    entries = [entry("one", 1, threads=2), entry("ddp", 2, threads=1), entry("fsdp", 2, strategy="fsdp", threads=1)]
    list_runs(tmp_path, entries)
    analysis = analyse(tmp_path)
    assert analysis.epoch is None
    assert [one.strategy for one in analysis.series] == ["ddp", "fsdp"]
    assert point(analysis, "ddp", 2).speedup == pytest.approx(1.8)
    assert point(analysis, "ddp", 2).samples_per_s == pytest.approx(18.0)
    assert point(analysis, "ddp", 1).speedup == 1.0
    assert analysis.target == 0.5
    assert (point(analysis, "ddp", 2).target_s, point(analysis, "fsdp", 2).target_s) == (10.0, 20.0)
    assert "ddp wins" in analysis.verdicts[0]
    assert "fsdp: mean Dice falls by 0.300" in analysis.verdicts[-1]
    assert any("shared one machine of 2 cores" in text for text in analysis.warnings)
    assert "Strong scaling" in " ".join(analysis.notes)
    assert len(analysis.logs) == 3
    missed = analyse(tmp_path, target=0.9)
    assert (point(missed, "ddp", 2).target_s, point(missed, "ddp", 2).reached) == (None, 0)


def test_what_makes_own_runs_doubtful(tmp_path: Path) -> None:
    run_folder(tmp_path / "one", samples_per_s=10.0)
    run_folder(tmp_path / "two", samples_per_s=18.0, train={"precision": "bf16"})
    run_folder(tmp_path / "four", samples_per_s=18.0)
    entries = [entry("one", 1), entry("two", 2, mode="weak", others_cores=1.2), entry("four", 4)]
    list_runs(tmp_path, entries)
    output = " ".join(analyse(tmp_path).warnings)
    assert "4 workers took turns on fewer cores" in point(analyse(tmp_path), "ddp", 4).doubt
    assert "precision was not the same in all runs (bf16, fp32)" in output
    assert "other programs used up to 1.2 cores" in point(analyse(tmp_path), "ddp", 2).doubt
    assert "strong and weak scaling are mixed" in output
