"""Arguments and options that several commands share, above all SOURCE: a data set, a run's YAML, or a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.files import expanded
from hasten.observe.rundir import RUN_YAML, check_run_dir

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig
    from hasten.pathology.config import DetectionConfig

SOURCE_HELP = (
    "A data set (folder, dataset.json, .json or .csv list, or a URL of one), a run's YAML, or a recipe "
    "(`hasten recipe list`)."
)
Source = Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)]
OptionalSource = Annotated[str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP)]
SourceUnlessResumed = Annotated[
    str | None, typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Not needed with --resume.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="a.b=value",
        help="Settings as section.field=value, with the value in YAML; they win over the YAML file.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out with its own settings.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
TrustChangedCode = Annotated[
    bool,
    typer.Option(
        "--trust-changed-code",
        help="Build your own network from its current code, though that has changed since the training.",
    ),
]


def config_from(source: str, overrides: Sequence[str]) -> RunConfig:
    """`settings_from` for commands that support only segmentation. Also raises ValueError for a run on slides."""
    config = settings_from(source, overrides)
    if config.kind == "detection":
        raise ValueError(f"{source}: is a run on slides, which only `hasten train` and `hasten predict` take")
    return config


def settings_from(source: str, overrides: Sequence[str]) -> RunConfig | DetectionConfig:
    """The run of a YAML file, of a recipe, or of a data set with every setting left to be decided from the data.

    A recipe is named, and a file or folder of that name comes first; or it is a YAML file with a `title`. Its data are
    checked, so that missing or unsuitable data are reported before anything is started. The `kind` of the result says
    whether it trains on slides.

    Raises:
        ValueError: no such file or recipe, no data set named, data of a recipe that are absent or of other classes, or
            mistakes in the settings (all of them in one message).
    """
    from hasten.config.load import load_source
    from hasten.config.url import is_url, shown
    from hasten.recipes.load import recipe_at, source_folder

    if is_url(source):
        if shown(source).lower().endswith((".yaml", ".yml")):
            raise ValueError(f"{shown(source)}: a run's YAML must be a local file; download it first")
        return load_source(source, overrides)
    recipe = recipe_at(source)
    if recipe is not None:
        from hasten.recipes.run import detection_of, run_of

        make = detection_of if recipe.kind == "detection" else run_of
        return make(recipe, overrides, base=source_folder(source))
    path = expanded(source)
    if path.suffix.lower() in (".yaml", ".yml"):
        from_file = load_kind(path, overrides)
        if not from_file.data.source:
            raise ValueError(
                f"{path}: names no data set; add `data: {{source: FOLDER}}` or the override data.source=FOLDER"
            )
        return from_file
    if not path.exists() and "=" in source:
        raise ValueError(f"{source}: a data set or a run's YAML must come before the overrides")
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder; name a data set, a run's YAML or a recipe")
    return load_source(str(path), overrides)


def load_kind(path: Path, overrides: Sequence[str]) -> RunConfig | DetectionConfig:
    """The run that a YAML file describes, on slides where it says `kind: detection`. Raises ValueError for mistakes."""
    from hasten.config.load import load_run
    from hasten.config.yaml_file import read_document

    if read_document(path).tree.get("kind") == "detection":
        from hasten.pathology.config import load

        return load(path, overrides)
    return load_run(path, overrides)


def resumed_from(out: Path, source: str | None, overrides: Sequence[str]) -> RunConfig | DetectionConfig:
    """The settings of the run in `out` with overrides; SOURCE, if given, must be the same data set."""
    from hasten.cases.locate import same_source
    from hasten.config.url import is_url, shown

    if source is not None and "=" in source and not is_url(source) and not Path(source).exists():
        overrides = [source, *overrides]
        source = None
    check_run_dir(out, resume=True)
    settings = out / RUN_YAML
    config = load_kind(settings, overrides)
    if not config.data.source:
        raise ValueError(f"{settings}: names no data set, so it is not as the run wrote it; restore it from a copy")
    if source is None:
        return config
    # A recipe may need the data's location in an override.
    data_overrides = [] if Path(source).exists() else [each for each in overrides if each.startswith("data.")]
    named = settings_from(source, data_overrides).data.source
    if not same_source(named, config.data.source):
        raise ValueError(
            f"{shown(source)}: the run in {out} was trained on {shown(config.data.source)}; "
            "leave SOURCE out to resume it"
        )
    data: Any = dataclasses.replace(config.data, source=named)
    return dataclasses.replace(config, data=data)


def run_from(source: str, overrides: Sequence[str]) -> RunConfig:
    """`config_from` that also takes the folder of a run, for its run.yaml."""
    settings = expanded(source) / RUN_YAML
    return config_from(str(settings) if settings.is_file() else source, overrides)
