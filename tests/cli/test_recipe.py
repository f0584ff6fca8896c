from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli.recipe import app
from hasten.cli.source import config_from
from hasten.phantoms.organs import write_phantoms
from hasten.recipes.load import load_recipe, recipe_names, recipe_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_phantom_writes_a_set_that_can_be_trained_on(tmp_path: Path) -> None:
    out = tmp_path / "twin"
    output = run("phantom", "hippocampus", "--cases", "3", "--to", str(out))
    assert output.splitlines() == [f"3 cases in {out}", f"train      hasten train {out / 'train.yaml'} --out FOLDER"]
    config = config_from(str(out / "train.yaml"), [])
    assert (config.train.target, Path(config.data.source)) == (0.80, out)


def test_a_recipe_s_name_is_a_source_and_a_path_of_that_name_comes_first(tmp_path: Path, monkeypatch) -> None:
    data = write_phantoms(tmp_path / "data", num_cases=11, shape=(8, 16, 16))
    config = config_from("spleen", [f"data.source={data}", "train.seed=3"])
    assert (config.train.target, config.train.seed, len(config.data.split.validation)) == (0.94, 3, 9)
    monkeypatch.chdir(tmp_path)
    data.rename(tmp_path / "spleen")
    config = config_from("spleen", [])
    assert (config.data.source, config.train.target) == (str(tmp_path / "spleen"), None)


def test_recipes_are_listed_and_shown() -> None:
    assert {line.split()[0] for line in run("list").splitlines()} == set(recipe_names())
    for name in recipe_names():
        shown = run("show", name)
        assert shown.startswith(f"recipe     {name}: ")
        assert recipe_path(name).read_text().rstrip() in shown
    without = next(name for name in recipe_names() if not load_recipe(name).data)
    with pytest.raises(ValueError, match=f"{without}: has no public data; `hasten recipe phantom"):
        run("data", without)
