"""`hasten train` and `hasten predict` on slides, whose runs have separate settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.observe.clock import process_start
from hasten.observe.rundir import REPORT_HTML, RUN_YAML, SUMMARY_JSON

if TYPE_CHECKING:
    from hasten.distribute.world import World
    from hasten.pathology.config import DetectionConfig
    from hasten.recipes.recipe import Recipe


def detection_config(source: str, overrides: Sequence[str], recipe: Recipe | None) -> DetectionConfig | None:
    """The run on slides that SOURCE names: a recipe for detection, or a YAML of that kind; None for anything else.

    recipe: what `recipe_at` gives of SOURCE. Raises ValueError for mistakes in it, or slides that are absent.
    """
    from hasten.config.places import read_document
    from hasten.recipes.load import YAMLS, source_folder

    if recipe is not None:
        if recipe.kind != "detection":
            return None
        from hasten.recipes.slides import detection_of

        return detection_of(recipe, overrides, base=source_folder(source))
    path = Path(source).expanduser()
    if path.suffix.lower() not in YAMLS or not path.is_file() or read_document(path).tree.get("kind") != "detection":
        return None
    from hasten.pathology.config import load

    return load(path, overrides)


def resumed_detection(out: Path, source: str | None, overrides: Sequence[str]) -> DetectionConfig | None:
    """The settings of the run on slides in `out` and overrides on top; None where the run there is of another kind."""
    from hasten.pathology.config import is_detection_run, load

    if not is_detection_run(out):
        return None
    if source is not None and "=" in source and not Path(source).exists():
        overrides, source = [source, *overrides], None
    config = load(out / RUN_YAML, overrides)
    if source is not None:
        from hasten.recipes.load import recipe_at

        named = detection_config(source, [], recipe_at(source))
        if named is None or Path(named.data.source).resolve() != Path(config.data.source).resolve():
            raise ValueError(
                f"{source}: the run in {out} was trained on the slides of {config.data.source}; leave SOURCE out to "
                "resume it"
            )
    return config


def train_slides(config: DetectionConfig, out: Path, world: World, *, resume: bool, quiet: bool) -> list[str]:
    """Train on slides; returns the closing lines of the command's output."""
    if world.size > 1:
        raise ValueError("a run on slides is one process's; start it without a launcher, or one run a process")

    from hasten.observe.progress import Progress
    from hasten.pathology.run import train_detection

    progress = None if quiet else Progress()
    try:
        summary = train_detection(config, out, progress, resume=resume, started=process_start())
    finally:
        if progress is not None:
            progress.stop()
    return _summary_lines(summary, out)


def is_of_slides(run: Path) -> bool:
    """Whether a run's folder is one on slides."""
    from hasten.pathology.config import is_detection_run

    return is_detection_run(run)


def predict_slides(run: Path, inputs: Sequence[Path], out: Path, *, overwrite: bool, device: str) -> str:
    """Write heat maps and detections of slides; returns the closing line of the command's output."""
    from hasten.pathology.predict import predict_slides as detect

    written = detect(run, inputs, out, overwrite=overwrite, device=device)
    return f"{len(inputs)} heat map{'' if len(inputs) == 1 else 's'} in {out}, detections in {written}"


def _summary_lines(summary: dict[str, Any], out: Path) -> list[str]:
    best, froc = summary["best"], summary["froc"]
    lines = [f"best AUC   {best['value']:.4f} at step {best['step']}"] if best["value"] is not None else []
    if froc["score"] is not None:
        at = ", ".join(
            f"{value:.2f} at {rate:g}" for rate, value in zip(froc["rates"], froc["sensitivity"], strict=True)
        )
        lines.append(f"FROC       {froc['score']:.4f} (sensitivity {at} false positives a slide)")
    return [
        *lines,
        f"time       {summary['seconds']['total']:.1f} s",
        f"summary    {out / SUMMARY_JSON}",
        f"report     {out / REPORT_HTML}",
        f"predict    hasten predict {out} SLIDE... --out FOLDER",
    ]
