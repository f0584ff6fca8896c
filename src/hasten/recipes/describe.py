"""Terminal descriptions of recipes."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from hasten.cases.public import data_home, public_set
from hasten.cases.public import described as described_set
from hasten.recipes.load import load_recipe, recipe_names
from hasten.recipes.recipe import Recipe, TwinSettings

_WIDTH = 110
_INDENT = " " * 11


def table() -> str:
    """One line for each recipe: name, target, title."""
    recipes = [load_recipe(name) for name in recipe_names()]
    width = max(len(recipe.name) for recipe in recipes)
    return "\n".join(f"{recipe.name:{width}}  {_target_text(recipe):9}  {recipe.title}" for recipe in recipes)


def described(recipe: Recipe, name: str) -> str:
    """A recipe in full: data, licence, target, phantoms, every setting, and where the numbers are from.

    name: what the user calls it on the command line.
    """
    return "\n".join(_lines(recipe, name))


def _lines(recipe: Recipe, name: str) -> Iterator[str]:
    yield _row("recipe", f"{recipe.name}: {recipe.title}")
    if recipe.data:
        public = public_set(recipe.data)
        yield _row("data", described_set(public))
        folder = data_home() / public.folder
        yield _row("", f"{folder} ({'there' if folder.is_dir() else f'not there; `hasten recipe data {name}`'})")
        yield _row("cite", public.citation)
    else:
        yield _row("data", "none that is public; phantoms, or yours with data.source=FOLDER")
    if recipe.labels:
        yield _row("labels", ", ".join(f"{value} {label}" for value, label in recipe.labels.items()))
    if recipe.target is not None:
        yield _row("target", _target_text(recipe))
    if recipe.validation_last:
        yield _row("split", f"the last {recipe.validation_last} cases by name validate, the others train")
    yield from _settings("settings", recipe.run)
    for title, option, twin in (("phantoms", "", recipe.twin), ("reduced", " --reduced", recipe.reduced)):
        if twin is not None:
            yield _row(title, f"{_phantoms(twin)}; `hasten recipe phantom {name}{option} --to DIR`")
            yield from _settings("", twin.run)
    for what, where in recipe.sources.items():
        yield _row("from", f"{what}: {where}")
    yield _row("train", f"hasten train {name} --out FOLDER")
    for title, command in zip_longest(("fine-tune",), recipe.fine_tuning, fillvalue=""):
        yield _row(title, command)


def _target_text(recipe: Recipe) -> str:
    names = {"dice": "Dice", "iou": "IoU", "froc": "FROC", "auc": "AUC"}
    return "" if recipe.target is None else f"{names[recipe.metric]} {recipe.target:g}"


def _phantoms(twin: TwinSettings) -> str:
    size = "" if twin.shape is None else f" of {' x '.join(map(str, twin.shape))} voxels"
    goal = "" if twin.target is None else f", target {twin.target:g}"
    return f"{twin.cases} {twin.make}{size}{goal}"


def _settings(title: str, tree: dict[str, Any]) -> Iterator[str]:
    for section, value in tree.items():
        fields = value if isinstance(value, dict) else {"": value}
        text = " ".join(f"{section}{'.' if name else ''}{name}={_value(setting)}" for name, setting in fields.items())
        yield _row(title, text)
        title = ""


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _row(title: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=f"{title:11}", subsequent_indent=_INDENT, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
