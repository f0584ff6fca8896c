from __future__ import annotations

from pathlib import Path

import pytest

from hasten.config.load import load_run
from hasten.recipes.load import load_recipe, merge_settings, recipe_names

OWN = """\
name: own
title: A task of one's own
labels: {0: background, 1: thing}
target: 0.8
run:
  train: {steps: 5}
"""


def own(folder: Path, text: str = OWN, **changed: str) -> Path:
    path = folder / "own.yaml"
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_says_where_its_numbers_are_from(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.title
    assert recipe.sources
    if recipe.kind == "segmentation":
        assert recipe.target is not None
        assert recipe.peer is not None
        assert recipe.twin is not None


def test_an_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"^no recipe is called 'splen'; did you mean spleen\?"):
        load_recipe("splen")
    with pytest.raises(ValueError, match=r"Known are brats, .*spleen"):
        load_recipe("zzz")
    with pytest.raises(ValueError, match=r"nowhere\.yaml: cannot be read"):
        load_recipe("nowhere.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("target: 0.8", "target_: 0.8", r"own\.yaml:4: target_: .* did you mean target\?"),
        ("target: 0.8", "metric: froc", r"own\.yaml:4: metric: .*dice or iou .*segmentation"),
        ("target: 0.8", "data: splen", r"own\.yaml:4: data: .*'splen'; did you mean spleen"),
        ("target: 0.8", "twin: {validation_last: -2}", r"own\.yaml:4: twin\.validation_last: must be 0 or more"),
        ("labels: {0: background, 1: thing}", "labels: {0: background}", r"own\.yaml:3: labels: must name the backgr"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_a_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load_recipe(own(tmp_path, **{old: new}))
    assert str(error.value).count("own.yaml:") == 1


@pytest.mark.parametrize("name", [name for name in recipe_names() if load_recipe(name).kind == "segmentation"])
def test_the_settings_of_a_recipe_and_its_phantoms_are_runs(name: str, tmp_path: Path) -> None:
    import yaml

    recipe = load_recipe(name)
    for twin in (None, recipe.twin, recipe.reduced):
        tree = recipe.run if twin is None else merge_settings(recipe.run, twin.run)
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        assert load_run(path).train.steps == tree["train"]["steps"]
