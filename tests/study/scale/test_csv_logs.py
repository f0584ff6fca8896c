from __future__ import annotations

from pathlib import Path

import pytest

from hasten.study.scale.logs import parse_name, read_csv
from tests.study.scale.studies import COLUMNS, csv_log


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log_1.csv", ("native", 1, 0)), ("log_hvd_14.csv", ("horovod", 14, 0)), ("log_ddp_4.csv", ("ddp", 4, 0)),
        ("log_local_sgd_8_seed3.csv", ("local_sgd", 8, 3)), ("log_2_seed1.csv", ("native", 2, 1)),
        ("log_zero1_2.csv", ("zero1", 2, 0)), ("log_.csv", None), ("log_0.csv", None), ("log_x.csv", None),
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


def test_a_log_without_an_index_counts_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "log_1.csv"
    path.write_text("time_per_epoch,loss,training_time,dice\n3,0.5,7,0.8\n4,0.4,7,0.8\n")
    log, notes = read_csv(path)
    assert (dict(log.epochs), log.metric_name, log.rate, notes) == ({0: 3.0, 1: 4.0}, "Dice", None, [])


def test_unknown_columns_are_named_and_ignored(tmp_path: Path) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0] + ",gpu_temp,note", *(line + ",80,hot" for line in lines[1:])]))
    log, notes = read_csv(path)
    assert notes == ["log_1.csv: unknown columns are ignored: gpu_temp, note."]
    assert log.total_s == 65.0


@pytest.mark.parametrize("column", ["time_per_epoch", "loss", "training_time", "iou"])
def test_a_missing_column_is_named_with_its_file(tmp_path: Path, column: str) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0)
    path.write_text(path.read_text().replace(column, f"{column}_", 1))
    with pytest.raises(ValueError, match=rf"log_1\.csv: has no column {column} \(it has .*{column}_"):
        read_csv(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0,15.0,", "0,fast,", r"log_1\.csv:2: time_per_epoch is 'fast'"),
        ("0,15.0,", "0,,", r":2: time_per_epoch is ''"),
        ("0,15.0,", "0,-15.0,", r":2: time_per_epoch is '-15.0', but must be a number of at least"),
        ("0,15.0,", "0,nan,", r":2: time_per_epoch is 'nan'"),
        ("1,10.0,0.5,", "1,10.0,low,", r":3: loss is 'low'"),
        ("1,10.0,", "0,10.0,", r":3: epoch 0 is there twice"),
        ("1,10.0,", "-1,10.0,", r":3: the first column is '-1'"),
        ("1,10.0,0.5,", "1,10.0,", r":3: has 6 values for 7 columns"),
        (",0.9\n", ",good\n", r"iou is 'good'"),
    ],
)  # fmt: skip
def test_bad_rows(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_csv(path)


@pytest.mark.parametrize("content", [b"", (",".join(COLUMNS) + "\n").encode()], ids=["empty", "only the columns"])
def test_a_log_without_epochs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log_1.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"log_1\.csv: holds no epoch"):
        read_csv(path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "log_1.csv"
    path.write_bytes(b"\x89PNG\r\n\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"log_1\.csv: can't be read as CSV"):
        read_csv(path)


def test_a_diverged_run_has_its_losses_left_out_and_its_quality_unknown(tmp_path: Path) -> None:
    path = csv_log(tmp_path, "log_1.csv", 10.0, iou="nan")
    path.write_text(path.read_text().replace("1,10.0,0.5,", "1,10.0,nan,"))
    log, notes = read_csv(path)
    assert [epoch for epoch, _, _ in log.losses] == [1, 3, 4, 5, 6]
    assert log.losses[1][1] == 35.0
    assert log.metric is None
    assert "its iou is no finite number" in notes[0]
