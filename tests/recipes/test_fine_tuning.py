"""The commands that a recipe shows for fine-tuning, one after another, on small phantoms."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.observe.rundir import SUMMARY_JSON
from hasten.recipes.load import load_recipe, recipe_names
from hasten.recipes.twin import write_twin
from tests.recipes.small import small_twin

SHOWN = [name for name in recipe_names() if load_recipe(name).fine_tuning]
QUICK = ["train.steps=2", "train.validate_every=2", "train.target=1.0", "observe.trackers=[]", "cache.dir=cache",
         "train.compile=false", "sample.compile=false", "train.precision=fp32", "train.channels_last=false",
         "network.channels=[4,8]"]  # fmt: skip
SIZES = {
    "hippocampus": ["sample.patch=[16,16,16]", "network.strides=[[2,2,2]]"],
    "membrane": ["sample.patch=[1,32,32]", "infer.patch=[1,32,32]", "network.strides=[[1,2,2]]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_each_command_works_as_it_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(name)
    write_twin(recipe, small_twin(recipe), tmp_path / "public")
    monkeypatch.chdir(tmp_path)
    for command in recipe.fine_tuning:
        program, *words = shlex.split(command)
        assert program == "hasten"
        if words[:2] == ["recipe", "phantom"]:
            words += ["--cases", "4"]
        else:
            source = [] if "data.source=" in command else ["data.source=public"]
            words += [*source, *QUICK, *SIZES[name]]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    tuned = json.loads((tmp_path / "runs/tuned" / SUMMARY_JSON).read_text())
    assert tuned["accelerators"]["weights to start from"]["on"]
