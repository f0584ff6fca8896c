"""Heat maps and detections of slides, by a run's best weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.checkpoint.file import read_checkpoint
from hasten.observe.rundir import BEST_PT, CHECKPOINTS
from hasten.pathology.compose import scorer_of
from hasten.pathology.config import DetectionConfig, is_detection_run, load
from hasten.pathology.detect import Detection, write_detections
from hasten.pathology.evaluate import DETECTIONS_CSV, heat_map_grid, scan
from hasten.pathology.heatmap import HEAT_MAP_ENDINGS, Scorer
from hasten.pathology.network import build_classifier
from hasten.pathology.tiles import open_case
from hasten.runtime.device import pick_device
from hasten.runtime.memory_format import memory_format
from hasten.runtime.variant import Variant


def predict_slides(
    run: str | Path, slides: Sequence[str | Path], out: str | Path, *, overwrite: bool = False, device: str = "auto"
) -> Path:
    """NAME.npy, NAME.json and NAME.png of each slide in `out`, and detections.csv of all, whose path is returned.

    Raises ValueError for a directory that holds no detection run, two slides of one name, files that exist without
    `overwrite`, and what opening a slide does, before anything is written.
    """
    config, scorer = load_scorer(run, device)
    paths, out = [Path(slide) for slide in slides], Path(out)
    names = [path.stem for path in paths]
    if not paths:
        raise ValueError("no slides; name one at least")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"two slides are called {twice}, and one's heat map would replace the other's; name one a time"
        )
    targets = [out / DETECTIONS_CSV, *(out / f"{name}{ending}" for name in names for ending in HEAT_MAP_ENDINGS)]
    existing = next((target for target in targets if target.exists()), None)
    if existing is not None and not overwrite:
        raise ValueError(f"{existing}: exists; add --overwrite to replace it, or choose another --out")
    for path in paths:
        with open_case(path, config.data) as slide:
            heat_map_grid(slide, config)  # a slide without the level is refused before anything is written
    rows: list[Detection] = []
    for path, name in zip(paths, names, strict=True):
        with open_case(path, config.data) as slide:
            rows += scan(slide, name, scorer, config, out).rows(name)
    write_detections(out / DETECTIONS_CSV, rows)
    return out / DETECTIONS_CSV


def load_scorer(run: str | Path, device: str = "auto") -> tuple[DetectionConfig, Scorer]:
    """The settings and the classifier of a run. Raises ValueError for a directory without a detection run."""
    if not is_detection_run(run):
        raise ValueError(f"{run}: holds no run on slides (its run.yaml does not say kind: detection)")
    content = read_checkpoint(Path(run) / CHECKPOINTS / BEST_PT)
    config = load(Path(run) / "run.yaml")
    target, variant = pick_device(device), Variant(**content["variant"])
    if target.type == "cpu" and variant.precision == "tf32":
        variant = Variant(precision="fp32", channels_last=variant.channels_last)
    network = build_classifier(config.network)
    network.load_state_dict(content["weights"])
    network = network.to(target, memory_format=memory_format(2, variant.channels_last)).eval()  # type: ignore[call-overload]
    return config, scorer_of(network, config, variant, target)
