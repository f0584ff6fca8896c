"""A recipe's run on its data, its phantoms or the user's data; writes the phantoms."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cases.public import absent, data_home, public_set
from hasten.cases.sources import find_listing
from hasten.cases.types import CaseSet
from hasten.config.augment import OF_DEFAULT
from hasten.config.check import check_run
from hasten.config.load import dump_run, load_as
from hasten.config.schema import RunConfig
from hasten.config.url import is_url, shown
from hasten.files import expanded
from hasten.observe.rundir import empty_folder
from hasten.recipes.load import Recipe, TwinSettings, merge_settings

if TYPE_CHECKING:
    from hasten.pathology.config import DetectionConfig


def run_of(
    recipe: Recipe, overrides: Sequence[str] = (), *, twin: TwinSettings | None = None, base: Path | None = None
) -> RunConfig:
    """The run that a recipe describes, with `section.field=value` over it; with `twin` for those phantoms.

    Its data are where `data.source` says, else in the folder of public sets. base: folder that a data.source in the
    recipe is relative to. The data are looked through: classes, and the cases for validation.
    Raises ValueError: a recipe for detection, a mistake in an override, data that are absent (with what to fetch,
    how large it is and under which licence), that can't be read, or that hold labels outside the recipe's classes.
    """
    if recipe.kind != "segmentation":
        raise ValueError(f"{recipe.name}: is a recipe for detection on slides, which only `hasten train` takes")
    tree = recipe.run if twin is None else merge_settings(recipe.run, twin.run)
    train = tree.get("train") or {}
    target = recipe.target if twin is None or twin.target is None else twin.target
    tree = merge_settings(tree, {"train": {"metric": recipe.metric, **({"target": target} if target else {}), **train}})
    if _is_overridden("augment.preset", overrides) or _is_overridden("augment.chain", overrides):
        # Drop the recipe's augmentation, which the override replaces.
        sample = {name: value for name, value in (tree.get("sample") or {}).items() if name not in OF_DEFAULT}
        tree = {**tree, "sample": sample, "augment": {}}
    config = load_as(RunConfig, check_run, None, overrides, tree=tree)
    source = _source(recipe, tree, config.data.source, overrides, base)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))
    case_set = None
    if not is_url(source):
        from hasten.cache.fingerprint import find_cached_source, get_case_set  # imports torch

        listing = find_listing(source)
        case_set = get_case_set(listing, None, find_cached_source(listing, config.cache))
        check_labels(recipe, case_set)
    last = recipe.last_of(twin)
    if last and not _is_overridden("data.split", overrides):
        config = _with_last(config, recipe.name, last, case_set)
    return config


def detection_of(
    recipe: Recipe, overrides: Sequence[str] = (), *, twin: TwinSettings | None = None, base: Path | None = None
) -> DetectionConfig:
    """`run_of` for a recipe of detection on slides, which are not inspected."""
    from hasten.pathology.config import load

    assert recipe.kind == "detection"
    tree = recipe.run if twin is None else merge_settings(recipe.run, twin.run)
    config = load(tree, overrides)
    source = _source(recipe, tree, config.data.source, overrides, base)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))


def check_labels(recipe: Recipe, case_set: CaseSet) -> None:
    """Raise ValueError for data that declare, or if undeclared contain, labels that the recipe lacks."""
    outside = sorted(set(case_set.labels) - set(recipe.labels))
    if not outside:
        return
    known = ", ".join(f"{value} ({name})" for value, name in recipe.labels.items())
    raise ValueError(
        f"{case_set.source}: declares or holds the label values {', '.join(map(str, outside))}, but the recipe "
        f"{recipe.name} has only the classes {known}; map those values to the recipe's, or train without it: name the "
        "data set in the recipe's place"
    )


def _source(recipe: Recipe, tree: dict[str, Any], source: str, overrides: Sequence[str], base: Path | None) -> str:
    """The data source: the one that is set, or the public set's folder. Raises ValueError if it is missing."""
    if is_url(source):
        return source
    if source and not _is_overridden("data.source", overrides):
        source = str(Path.cwd() / (base or Path()) / expanded(tree["data"]["source"]))
    if not source:
        if not recipe.data:
            raise ValueError(_without_data(recipe))
        source = str(data_home().absolute() / public_set(recipe.data).folder)
    if not Path(source).exists():
        if recipe.data:
            raise absent(public_set(recipe.data), Path(source))
        raise ValueError(f"{source}: is not there. {_without_data(recipe)}")
    return source


def _without_data(recipe: Recipe) -> str:
    phantoms = f", or write phantoms (`hasten recipe phantom {recipe.name} --to DIR`)" if recipe.twin else ""
    return f"{recipe.name}: names no public data set; name yours with data.source=FOLDER{phantoms}"


def _is_overridden(dotted: str, overrides: Sequence[str]) -> bool:
    names = (text.partition("=")[0].strip() for text in overrides)
    return any(name == dotted or name.startswith(f"{dotted}.") or name == "data" for name in names)


def _with_last(config: RunConfig, name: str, count: int, case_set: CaseSet | None) -> RunConfig:
    """Hold out the last cases by sorted ids for validation."""
    if case_set is None:
        raise ValueError(
            f"{shown(config.data.source)}: the recipe {name} validates on the last {count} cases, so the data "
            "must be in a folder here; fetch them first, or say how to split them with data.split.by=fraction"
        )
    ids = sorted(case.id for case in case_set.cases)
    if len(ids) <= count:
        raise ValueError(
            f"{case_set.source}: has {len(ids)} cases, and the recipe {name} validates on the last {count}; use "
            "the whole data set, or data.split.by=fraction"
        )
    split = dataclasses.replace(config.data.split, by="list", validation=tuple(ids[-count:]))
    return dataclasses.replace(config, data=dataclasses.replace(config.data, split=split))


TRAIN_YAML = "train.yaml"
"""The YAML that `hasten train` takes to train on the phantoms: the recipe's settings merged with the phantoms'."""


def twin_of(recipe: Recipe, *, reduced: bool = False, cases: int | None = None) -> TwinSettings:
    """The settings of a recipe's phantoms; `cases` replaces their number. Raises ValueError if it has none."""
    settings = recipe.reduced if reduced else recipe.twin
    if settings is None:
        remedy = "leave out --reduced" if reduced else "add --reduced, or fetch its data"
        raise ValueError(f"{recipe.name}: has no {'reduced' if reduced else 'full-size'} phantoms; {remedy}")
    return settings if cases is None else dataclasses.replace(settings, cases=cases)


def write_twin(recipe: Recipe, twin: TwinSettings, to: Path, *, num_threads: int = 2) -> Path:
    """Write the phantoms into `to`, new or empty, and the YAML to train on them, which is returned.

    The same settings give the same files. Raises ValueError if `to` is in use or the phantoms' settings are invalid.
    """
    empty_folder(to, "--to")
    last = recipe.last_of(twin)
    if twin.cases <= last:
        raise ValueError(f"{recipe.name}: {twin.cases} phantoms are too few, as the last {last} are for validation")
    _write(recipe, twin, to, num_threads)
    path = to / TRAIN_YAML
    heading = f"# Phantoms of the recipe {recipe.name}: {recipe.title}\n"
    path.write_text(heading + _settings(recipe, twin, to), encoding="utf-8")
    return path


def _settings(recipe: Recipe, twin: TwinSettings, to: Path) -> str:
    """The run on phantoms in `to` as YAML, its source relative so that the folder may be moved."""
    overrides = [f"data.source={to.absolute()}"]
    config: Any = (detection_of if recipe.kind == "detection" else run_of)(recipe, overrides, twin=twin)
    return dump_run(dataclasses.replace(config, data=dataclasses.replace(config.data, source=".")))


def _write(recipe: Recipe, twin: TwinSettings, to: Path, num_threads: int) -> None:
    options: dict[str, Any] = {
        "seed": twin.seed,
        "num_cases": twin.cases,
        "num_threads": num_threads,
        "spacing": twin.spacing,
        **({} if twin.shape is None else {"shape": twin.shape}),
        **twin.options,
    }
    write: Callable[..., Path]
    match twin.make:
        case "ct":
            from hasten.phantoms.organs import write_phantoms as write
        case "tumours":
            from hasten.phantoms.tumours import write_tumour_phantoms as write
        case "hippocampi":
            from hasten.phantoms.hippocampus import write_hippocampi as write
        case "spheres":
            from hasten.phantoms.spheres import write_spheres as write
        case "cells":
            from hasten.phantoms.cells import write_cells as write
        case "slides":
            from hasten.phantoms.slides import write_phantom_slides as write
    known = inspect.signature(write).parameters
    unknown = sorted(set(twin.options) - set(known))
    if unknown:
        raise ValueError(f"{recipe.name}: twin.options.{unknown[0]}: {twin.make} phantoms have no such option")
    write(to, **{name: value for name, value in options.items() if name in known})
