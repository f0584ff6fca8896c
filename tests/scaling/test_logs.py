from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hasten.scaling.logs import parse_name, read_csv, read_logs
from tests.scaling.studies import COLUMNS, csv_log, entry, list_runs, run_folder


def test_logs_of_all_kinds(tmp_path: Path) -> None:
    csv_log(tmp_path, "log_hvd_2.csv", 10.0)
    csv_log(tmp_path, "log_1.csv", 10.0)
    csv_log(tmp_path, "log_first.csv", 10.0)
    (tmp_path / "notes.csv").write_text("a,b\n")
    (tmp_path / "pictures").mkdir()
    logs, notes = read_logs(tmp_path)
    assert [(log.strategy, log.world) for log in logs] == [("horovod", 2), ("native", 1)]
    assert len(notes) == 1
    assert notes[0].startswith("log_first.csv: ignored, ")
    assert "workers" in notes[0]


def test_listed_runs_take_the_clocks_and_facts_of_the_list(tmp_path: Path) -> None:
    run_folder(tmp_path / "one", samples_per_s=10.0)
    run_folder(tmp_path / "two", samples_per_s=20.0, world=2, strategy="ddp", seed=7)
    run_folder(tmp_path / "stray", samples_per_s=20.0)
    entries = [
        entry("one", 1, seconds=66.0, threads=2),
        entry("two", 2, seed=7, mode="weak", threads=1, others_cores=0.5),
        entry("three", 4, status="failed", why="no room"),
        entry("four", 4, seed=1, status="running"),
    ]
    list_runs(tmp_path, entries)
    logs, notes = read_logs(tmp_path)
    two, one = logs
    assert (one.strategy, one.world, one.total_s, one.mode) == ("single", 1, 66.0, "strong")
    assert (two.strategy, two.world, two.seed, two.total_s, two.mode) == ("ddp", 2, 7, 60.0, "weak")
    assert dict(one.epochs) == pytest.approx({0: 2.0, 1: 1.0, 2: 1.0, 3: 1.0})
    assert one.epoch_s(None) == pytest.approx(1.0)
    assert (one.metric, one.metric_name, one.cases, one.rate) == (0.8, "mean Dice", 10, 0.1)
    assert [one.time_to(level) for level in (0.5, 0.6, 0.8, 0.9)] == [10.0, 20.0, 20.0, None]
    assert one.losses[1] == pytest.approx((1.0, 7.0, 0.5))
    assert (one.machine["threads"], two.machine["others_cores"], one.machine["cores"]) == ("2", 0.5, 2)
    assert notes == ["three: failed (no room), so it is left out.", "four: running, so it is left out."]


def test_without_a_list_the_runs_tell_themselves(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", samples_per_s=10.0, seed=3)
    run_folder(tmp_path / "b", samples_per_s=20.0, world=2, strategy="fsdp")
    run_folder(tmp_path / "c", samples_per_s=20.0, world=2, strategy="ddp", status="interrupted")
    logs, notes = read_logs(tmp_path)
    assert [(log.strategy, log.world, log.seed) for log in logs] == [("fsdp", 2, 0), ("single", 1, 3)]
    assert notes == ["c: interrupted, so it is left out."]


def test_a_run_shorter_than_an_epoch_has_its_typical_pace(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", samples_per_s=10.0, train={"learning_rate_batch": 2})
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(lines[0] + "\n")
    (log,), _ = read_logs(tmp_path)
    assert dict(log.epochs) == {0: 2.0}
    assert log.rate == pytest.approx(0.25)  # the one that the batch made of it
    (folder / "metrics.jsonl").unlink()
    logs, notes = read_logs(tmp_path)
    assert logs[0].epoch_s(None) is None
    assert "has no pace" in notes[0]


def test_folders_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no log of a scaling study; .*log_<workers>\.csv"):
        read_logs(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        read_logs(tmp_path / "absent")
    run_folder(tmp_path / "a", samples_per_s=10.0, status="failed")
    with pytest.raises(ValueError, match="is a single run; name the folder"):
        read_logs(tmp_path / "a")
    with pytest.raises(ValueError, match=r"no log of a scaling study \(a: failed, .*left out"):
        read_logs(tmp_path)


def test_two_logs_of_one_arm(tmp_path: Path) -> None:
    csv_log(tmp_path, "log_hvd_2.csv", 10.0)
    csv_log(tmp_path, "log_horovod_02.csv", 10.0)
    message = r"log_horovod_02\.csv .*log_hvd_2\.csv .*2 workers .*seed 0"
    with pytest.raises(ValueError, match=message):
        read_logs(tmp_path)
    (tmp_path / "log_horovod_02.csv").rename(tmp_path / "log_hvd_2_seed1.csv")
    assert len(read_logs(tmp_path)[0]) == 2


def test_two_metrics(tmp_path: Path) -> None:
    csv_log(tmp_path, "log_1.csv", 10.0)
    path = csv_log(tmp_path, "log_2.csv", 10.0)
    path.write_text(path.read_text().replace("iou", "dice"))
    with pytest.raises(ValueError, match=r"metrics \(IoU in log_1\.csv and Dice in log_2\.csv\)"):
        read_logs(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": 0}, r"scale\.json: runs\.0\.world: "),
        ({"world": "two"}, r"runs\.0\.world: "),
        ({"strategy": "<b>"}, r"runs\.0\.strategy: "),
        ({"folder": ""}, r"runs\.0\.folder: "),
        ({"folder": "gone"}, r"names gone, which holds no run"),
    ],
)
def test_a_list_with_a_mistake(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    run_folder(tmp_path / "one", samples_per_s=10.0)
    list_runs(tmp_path, [{**entry("one", 1), **change}])
    with pytest.raises(ValueError, match=message):
        read_logs(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"runs": 3})])
def test_a_list_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "scale.json").write_text(text)
    with pytest.raises(ValueError, match=r"scale\.json: "):
        read_logs(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log_1.csv", ("native", 1, 0)), ("log_hvd_14.csv", ("horovod", 14, 0)), ("log_ddp_4.csv", ("ddp", 4, 0)),
        ("log_local_sgd_8_seed3.csv", ("local_sgd", 8, 3)), ("log_2_seed1.csv", ("native", 2, 1)),
        ("log_fsdp_2.csv", ("fsdp", 2, 0)), ("log_.csv", None), ("log_0.csv", None), ("log_x.csv", None),
        ("log_4.csv.bak", None), ("log_A_4.csv", None),
    ],
)  # fmt: skip
def test_the_name_tells_strategy_workers_and_seed(name: str, message: tuple[str, int, int] | None) -> None:
    assert parse_name(Path(name)) == message


def test_a_log(tmp_path: Path) -> None:
    log, notes = read_csv(csv_log(tmp_path, "log_hvd_4.csv", 10.0, iou=0.75))
    assert notes == []
    assert (log.strategy, log.world, log.seed) == ("horovod", 4, 0)
    assert dict(log.epochs) == {0: 15.0, 1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0, 5: 10.0}
    assert log.total_s == 65.0
    assert log.metric == 0.75
    assert log.metric_name == "IoU"
    assert log.losses[1] == (2.0, 25.0, 0.5)
    assert log.epoch_s(0) == 15.0
    assert log.epoch_s(None) == 10.0
    assert log.epoch_s(6) is None


def test_a_log_counts_its_rows_and_ignores_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "log_1.csv"
    path.write_text("note,time_per_epoch,loss,training_time,dice\nhot,3,0.5,7,0.8\n,4,0.4,7,0.8\n")
    log, notes = read_csv(path)
    assert (dict(log.epochs), log.metric_name, log.rate, notes) == ({0: 3.0, 1: 4.0}, "Dice", None, [])


@pytest.mark.parametrize("column", ["time_per_epoch", "loss", "training_time", "iou"])
def test_a_missing_column_is_named_with_its_file(tmp_path: Path, column: str) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0)
    path.write_text(path.read_text().replace(column, f"{column}_", 1))
    with pytest.raises(ValueError, match=rf"log_1\.csv: .*{column}"):
        read_csv(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0,15.0,", "0,fast,", r"log_1\.csv: line 2: time_per_epoch: "),
        ("0,15.0,", "0,,", r"line 2: time_per_epoch: "),
        ("0,15.0,", "0,-15.0,", r"line 2: time_per_epoch: .* greater than 0"),
        ("0,15.0,", "0,nan,", r"line 2: time_per_epoch: "),
        ("1,10.0,0.5,", "1,10.0,low,", r"line 3: loss: "),
        ("1,10.0,0.5,", "1,10.0,", r"line 3: has not one value for each column"),
        ("1,10.0,0.5,", "1,10.0,0.5,0.5,", r"line 3: has not one value for each column"),
        ("1,10.0,0.5,", "0,10.0,0.5,", r"numbers an epoch twice"),
        (",0.9\n", ",good\n", r"iou: "),
    ],
)
def test_bad_rows(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_csv(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no epoch"),
        (",".join(COLUMNS).encode() + b"\n", "holds no epoch"),
        (b"\x89PNG\r\n\xff\xfe\x00", "can't be read as CSV"),
    ],
    ids=["empty", "only the columns", "no text"],
)
def test_a_file_that_is_no_log(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log_1.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"log_1\.csv: {message}"):
        read_csv(path)


def test_a_diverged_run_has_its_losses_left_out_and_its_quality_unknown(tmp_path: Path) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0, iou="nan")
    path.write_text(path.read_text().replace("1,10.0,0.5,", "1,10.0,nan,"))
    log, notes = read_csv(path)
    assert [epoch for epoch, _, _ in log.losses] == [1, 3, 4, 5, 6]
    assert log.losses[1][1] == 35.0
    assert log.metric is None
    assert "its iou is no finite number" in notes[0]
