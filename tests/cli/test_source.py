from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cli.source import resumed_from, run_from
from hasten.config.load import dump_run, load_run
from hasten.observe.rundir import RUN_YAML


def test_a_resumed_run_takes_a_url_that_is_signed_again(tmp_path: Path) -> None:
    url = "https://host/set/list.json?Signature=1&Expires=2"
    (tmp_path / RUN_YAML).write_text(dump_run(load_run(None, [f"data.source={url}"])))
    assert resumed_from(tmp_path, None, ["train.steps=5"]).data.source == url
    again = url.replace("Signature=1", "Signature=3")
    assert resumed_from(tmp_path, again, []).data.source == again
    with pytest.raises(ValueError, match=r"^https://host/other: .* on https://host/set/list\.json;"):
        resumed_from(tmp_path, "https://host/other?Signature=1", [])


def test_a_run_s_folder_stands_for_its_settings_and_an_incomplete_one_is_refused(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    (run / "checkpoints").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("")
    data.mkdir()
    (data / "summary.json").write_text("{}")  # a data set may well have one
    (run / "run.yaml").write_text(f"data: {{source: {data}}}\n")
    result = run_from(str(run), ["train.seed=5"])
    assert (result.train.seed, result.data.source) == (5, str(data))
    assert run_from(str(data), []).data.source == str(data)
    with pytest.raises(ValueError, match="no such file"):
        run_from(str(tmp_path / "nowhere"), [])
