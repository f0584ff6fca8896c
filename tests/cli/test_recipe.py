from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli.recipe import app
from hasten.cli.source import config_from
from hasten.phantoms.organs import write_phantoms


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_tells_data_licence_target_settings_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_DATA", str(tmp_path))
    output = run("show", "spleen")
    for part in ("1.5 GiB", "CC-BY-SA 4.0", "not there; `hasten recipe data spleen`", "Antonelli", "target: 0.94",
                 "hasten recipe phantom spleen --reduced", "hasten train spleen --out FOLDER"):  # fmt: skip
        assert part in output
    (tmp_path / "Task09_Spleen").mkdir()
    assert "(there)" in run("show", "spleen")
    assert "none that is public" in run("show", "synthetic41")


def test_phantom_writes_a_set_that_can_be_trained_on(tmp_path: Path) -> None:
    out = tmp_path / "twin"
    output = run("phantom", "hippocampus", "--cases", "3", "--to", str(out))
    assert output.splitlines() == [f"3 cases in {out}", f"train      hasten train {out / 'train.yaml'} --out FOLDER"]
    config = config_from(str(out / "train.yaml"), [])
    assert (config.train.target, Path(config.data.source)) == (0.80, out)


def test_data_fetches_the_public_set_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.cases import public

    asked = []

    def download(wanted: public.PublicSet, to: Path | None = None) -> Path:
        asked.append((wanted.name, to))
        return tmp_path / wanted.folder

    monkeypatch.setattr(public, "download", download)
    output = run("data", "brats", "--to", str(tmp_path))
    assert "7.09 GiB" in output
    assert "CC-BY-SA 4.0" in output
    assert output.splitlines()[-1] == f"data       {tmp_path / 'Task01_BrainTumour'}"
    run("data", "heart")  # a set that no recipe is of
    assert asked == [("braintumour", tmp_path), ("heart", None)]
    with pytest.raises(ValueError, match=r"^synthetic41: .*`hasten recipe phantom synthetic41"):
        run("data", "synthetic41")
    with pytest.raises(ValueError, match="no public data set is called 'hert'; did you mean heart"):
        run("data", "hert")


def test_a_recipe_s_name_is_a_source_and_a_path_of_that_name_comes_first(tmp_path: Path, monkeypatch) -> None:
    data = write_phantoms(tmp_path / "data", num_cases=11, shape=(8, 16, 16))
    config = config_from("spleen", [f"data.source={data}", "train.seed=3"])
    assert (config.train.target, config.train.seed, len(config.data.split.validation)) == (0.94, 3, 9)
    monkeypatch.chdir(tmp_path)
    data.rename(tmp_path / "spleen")
    config = config_from("spleen", [])
    assert (config.data.source, config.train.target) == (str(tmp_path / "spleen"), None)
