from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cli.source import config_from
from hasten.cli.train import _resumed
from hasten.config.load import dump_run, load_run
from hasten.observe.rundir import RUN_YAML


def test_a_url_is_a_data_set() -> None:
    config = config_from("https://host/set/list.json?a=b", ["train.steps=5"])
    assert (config.data.source, config.train.steps) == ("https://host/set/list.json?a=b", 5)
    with pytest.raises(ValueError, match=r"^data\.source is given twice"):
        config_from("s3://bucket", ["data.source=x"])
    with pytest.raises(ValueError, match=r"^https://host/run\.yaml: a run's YAML must be a local file"):
        config_from("https://host/run.yaml?a=b", [])


def test_a_resumed_run_takes_a_url_that_is_signed_again(tmp_path: Path) -> None:
    url = "https://host/set/list.json?Signature=1&Expires=2"
    (tmp_path / RUN_YAML).write_text(dump_run(load_run(None, [f"data.source={url}"])))
    assert _resumed(tmp_path, None, ["train.steps=5"]).data.source == url
    again = url.replace("Signature=1", "Signature=3")
    assert _resumed(tmp_path, again, []).data.source == again
    with pytest.raises(
        ValueError, match=r"^https://host/other: the run in .* was trained on https://host/set/list\.json;"
    ):
        _resumed(tmp_path, "https://host/other?Signature=1", [])
