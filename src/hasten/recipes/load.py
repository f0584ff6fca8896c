"""Recipe: a published task with its data, settings, target metric and phantoms; loaded by name or from a YAML file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from hasten.config.load import load_as
from hasten.config.schema import Count, Counts, Natural, Positive
from hasten.config.yaml_file import read_document
from hasten.files import expanded

Target = Annotated[float, Interval(gt=0, le=1)]
Maker = Literal["ct", "tumours", "hippocampi", "cells", "spheres", "slides"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinSettings:
    """Phantoms that stand in for the data, and what training on them changes."""

    make: Maker = "ct"
    """Kind of phantom: `ct` abdomens with a spleen, `tumours` in brain MR of 4 channels, `hippocampi`, 2-D pictures of
    `cells`, `spheres` as in MONAI's tests, whole `slides`.
    """
    cases: Count = 16
    shape: Counts | None = None
    """(D, H, W) in voxels, and for pictures (1, H, W)."""
    spacing: tuple[Positive, Positive, Positive] = (1.0, 1.0, 1.0)
    """(D, H, W) in mm."""
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """What only these phantoms have."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings as in a run's YAML that differ from the recipe's."""
    validation_last: Natural | None = None
    """None is the recipe's."""
    target: Target | None = None
    """None is the recipe's."""
    peer: dict[str, Any] | None = None
    """None is the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A task. Space is (D, H, W) everywhere."""

    __pydantic_config__: ClassVar[dict[str, bool]] = {"allow_inf_nan": False}
    name: str = ""
    title: str = ""
    kind: Literal["segmentation", "detection"] = "segmentation"
    data: str = ""
    """Name of the public data set (`hasten.cases.public`); empty where there is none."""
    labels: dict[int, str] = field(default_factory=dict)
    """Label value to class name; the data may hold no other values."""
    validation_last: Natural = 0
    """The validation cases are this many of the last ones, by sorted ids; 0 leaves it to run.data.split."""
    metric: str = "dice"
    target: Target | None = None
    """The metric's value that a run stops at."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings as in a run's YAML; of a detection recipe those of `hasten.pathology`."""
    peer: dict[str, Any] | None = None
    """What other libraries train with (`benchmarks/ladder` in the repository); None where MONAI has no arms for it."""
    twin: TwinSettings | None = None
    """Phantoms of the data's own size."""
    reduced: TwinSettings | None = None
    """Phantoms so small that two cores can be trained on them."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source of each number: a name of the number, or of several, to where it was published or measured."""

    def last_of(self, twin: TwinSettings | None) -> int:
        """How many of the last cases validate, of the data or of phantoms."""
        return self.validation_last if twin is None or twin.validation_last is None else twin.validation_last


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
        # The top level of a recipe has a `title`, as no run's does.
        return load_recipe(path) if "title" in read_document(path).tree else None
    return load_recipe(source) if source in recipe_names() and not path.exists() else None


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
    for name in ("name", "title"):
        if not getattr(recipe, name).strip():
            yield f"{name}: is missing; every recipe has one"
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
