"""Terminal descriptions of recipes."""

from __future__ import annotations

from collections.abc import Iterator

from hasten.cases.public import data_home, public_set
from hasten.cases.public import described as described_set
from hasten.recipes.load import load_recipe, recipe_names, recipe_path
from hasten.recipes.recipe import Recipe

_METRICS = {"dice": "Dice", "iou": "IoU", "froc": "FROC", "auc": "AUC"}


def table() -> str:
    """One line for each recipe: name, target, title."""
    recipes = [load_recipe(name) for name in recipe_names()]
    width = max(len(recipe.name) for recipe in recipes)
    return "\n".join(f"{recipe.name:{width}}  {_target_text(recipe):9}  {recipe.title}" for recipe in recipes)


def described(recipe: Recipe, name: str) -> str:
    """A recipe in full: its data with their licence, the commands for it, and its file.

    name: what the user calls it on the command line.
    """
    return "\n".join(_lines(recipe, name))


def _lines(recipe: Recipe, name: str) -> Iterator[str]:
    yield f"recipe     {recipe.name}: {recipe.title}"
    if recipe.data:
        public = public_set(recipe.data)
        folder = data_home() / public.folder
        yield f"data       {described_set(public)}"
        yield f"           {folder} ({'there' if folder.is_dir() else f'not there; `hasten recipe data {name}`'})"
        yield f"cite       {public.citation}"
    else:
        yield "data       none that is public; phantoms, or yours with data.source=FOLDER"
    yield f"train      hasten train {name} --out FOLDER"
    for option, twin in (("", recipe.twin), (" --reduced", recipe.reduced)):
        if twin is not None:
            yield f"phantoms   hasten recipe phantom {name}{option} --to DIR ({twin.cases} {twin.make})"
    path = recipe_path(name)
    yield f"settings   {path}"
    yield ""
    yield path.read_text(encoding="utf-8").rstrip()


def _target_text(recipe: Recipe) -> str:
    return "" if recipe.target is None else f"{_METRICS[recipe.metric]} {recipe.target:g}"
