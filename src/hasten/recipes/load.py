"""Loads and validates a Recipe by name or from a YAML file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.config.load import load_as
from hasten.config.yaml_file import read_document
from hasten.files import expanded
from hasten.recipes.recipe import Recipe

_FOLDER = Path(__file__).parent
_METRICS = {"segmentation": ("dice", "iou"), "detection": ("froc", "auc")}
YAMLS = (".yaml", ".yml")
_MAPPINGS = ("regions", "region_values")
"""Fields whose mapping is one value, not a section."""


def recipe_names() -> tuple[str, ...]:
    """The recipes that come with Hasten, by name."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by its name, or of the YAML file at a path.

    Raises ValueError: no such recipe (the nearest is named), or every mistake in the file, each with its line, its
    dotted path and a remedy.
    """
    return load_as(Recipe, lambda recipe: list(_field_mistakes(recipe)), recipe_path(name))


def recipe_path(name: str | Path) -> Path:
    """The YAML file of a recipe, by its name or path. Raises ValueError if no recipe is called so."""
    path = expanded(name)
    if path.suffix.lower() in YAMLS:
        return path
    if str(name) not in recipe_names():
        similar = difflib.get_close_matches(str(name), recipe_names(), n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        raise ValueError(f"no recipe is called {str(name)!r}{hint} Known are {', '.join(recipe_names())}.")
    return _FOLDER / f"{name}.yaml"


def recipe_at(source: str) -> Recipe | None:
    """The recipe that a SOURCE of the command line names: the YAML file of one, or its name where no file or folder is
    called so; None for any other source. Raises ValueError as `load_recipe`.
    """
    path = expanded(source)
    if path.suffix.lower() in YAMLS and path.is_file():
        return load_recipe(path) if is_recipe(path) else None
    return load_recipe(source) if source in recipe_names() and not path.exists() else None


def is_recipe(path: Path) -> bool:
    """Whether a YAML file is a recipe: its top level has a `title`, as no run's does. Raises ValueError for no YAML."""
    return "title" in read_document(path).tree


def source_folder(name: str | Path) -> Path:
    """The folder that a relative data.source of a recipe is taken from."""
    path = expanded(name)
    return path.parent if path.suffix.lower() in YAMLS else Path()


def merge_settings(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Settings merged with `top`: sections are merged, other values replaced."""
    joined = dict(base)
    for name, value in top.items():
        below = joined.get(name)
        if isinstance(value, dict) and isinstance(below, dict) and name not in _MAPPINGS:
            joined[name] = merge_settings(below, value)
        else:
            joined[name] = value
    return joined


def _field_mistakes(recipe: Recipe) -> Iterator[str]:
    for field in ("name", "title"):
        if not getattr(recipe, field).strip():
            yield f"{field}: is missing; every recipe has one"
    if recipe.data:
        from hasten.cases.public import public_set

        try:
            public_set(recipe.data)
        except ValueError as error:
            yield f"data: {error}"
    allowed = _METRICS[recipe.kind]
    if recipe.metric not in allowed:
        choices = " or ".join(allowed)
        yield f"metric: must be {choices} in a recipe for {recipe.kind} (given {recipe.metric!r})"
    if recipe.kind == "segmentation" and len(recipe.labels) < 2:
        yield "labels: must name the background and a class at least, as in {0: background, 1: spleen}"
