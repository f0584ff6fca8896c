"""`train_detection`: from slides to a classifier, heat maps and FROC, in a run directory."""

from __future__ import annotations

import logging
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hasten.cases.slide.listing import SlideCase, find_slides, split_slides
from hasten.config.resume import changes_of
from hasten.distribute.world import detect_world
from hasten.engine.checkpoint import read_checkpoint
from hasten.engine.resume import require_use, tell_changes
from hasten.engine.stop import Stopped
from hasten.observe.clock import Clock
from hasten.observe.env import environment
from hasten.observe.lock import run_lock
from hasten.observe.progress import Progress
from hasten.observe.rundir import (
    CHECKPOINTS,
    ENV_JSON,
    RUN_YAML,
    SUMMARY_JSON,
    create_run_dir,
    undo_start,
    write_json,
)
from hasten.pathology.config import DETECTION_RULES, DetectionConfig, dump, load
from hasten.pathology.evaluate import evaluate_slides, heat_map_cells, write_froc
from hasten.pathology.fit import BEST_PT, Fit, Fitted, Parts, make_parts
from hasten.pathology.page import write_page
from hasten.pathology.tiles import pick_tiles, read_tiles, require_both

log = logging.getLogger(__name__)

Slides = tuple[tuple[SlideCase, ...], tuple[SlideCase, ...]]


def train_detection(
    config: DetectionConfig,
    out: str | Path,
    progress: Progress | None = None,
    *,
    resume: bool = False,
    started: float | None = None,
) -> dict[str, Any]:
    """Train on the slides of `data.source` in the run directory `out`, and return what its summary.json holds.

    Writes run.yaml, env.json, metrics.jsonl, checkpoints/, and of the slides that were held out heat_maps/,
    detections.csv, froc.json and report.html. resume: go on from checkpoints/last.pt; on a CPU the result is bit for
    bit that of a run that was never stopped. Raises ValueError for bad input before anything is trained; Stopped, a
    KeyboardInterrupt, after saving, on Ctrl-C, SIGTERM or SIGUSR1. started: as in `hasten.train`.
    """
    with run_lock(Path(out), resume=resume, patient=detect_world().restarts > 0):
        return _train(config, Path(out), progress, Clock(started), resume=resume)


def _train(
    config: DetectionConfig, out: Path, progress: Progress | None, clock: Clock, *, resume: bool
) -> dict[str, Any]:
    imported = clock.elapsed
    changes = changes_of(load(out / RUN_YAML), config, DETECTION_RULES) if resume else {}
    create_run_dir(out, resume=resume)
    try:
        slides, parts = _prepare(config, clock)
        # Only a time limit needs an estimate of the heat maps' duration.
        cells = heat_map_cells(slides[1], config) if config.train.max_seconds is not None else 0
        fit = Fit(parts, out, clock, progress, cells=cells, reserve_s=1.5 * imported)
        if resume:
            fit.resume()
        if resume and parts.paced.done(fit.first):
            require_use(out, changes, DETECTION_RULES, "train.steps")
        fit.limit.require(clock)
        temporary = out / f".{RUN_YAML}"
        temporary.write_text(dump(config), encoding="utf-8")
        temporary.replace(out / RUN_YAML)
        write_json(out / ENV_JSON, environment())
        if changes:
            tell_changes(out, fit.first, changes, DETECTION_RULES)
    except BaseException:
        if not resume:
            undo_start(out)
        raise
    command = f"hasten train --resume --out {shlex.quote(str(out))}"
    try:
        fitted = fit.run()
        if fitted.status == "interrupted":
            assert fit.stop.asked is not None
            raise Stopped(f"stopped at step {fitted.step}; go on with: {command}", fit.stop.asked)
        return _conclude(config, out, parts, fitted, slides, clock, imported)
    except OSError as error:
        raise ValueError(
            f"{out}: the run was stopped, as it could not be written to ({error.strerror or error}); make room there "
            f"and go on with: {command}"
        ) from error


def _prepare(config: DetectionConfig, clock: Clock) -> tuple[Slides, Parts]:
    """Everything before the first step. Raises ValueError for data that can't be trained on."""
    if not config.data.source:
        raise ValueError(
            "data.source: names no slides; give a folder with slides/ and masks/, or a list (hasten recipe phantom "
            "pathology --to DIR makes some)"
        )
    with clock.span("read_plan"):
        train, validation = split_slides(find_slides(config.data.source), config.data.fraction)
        picked = {"training": pick_tiles(train, config), "validation": pick_tiles(validation, config)}
        for what, each in picked.items():
            require_both(each, what)
    with clock.span("prepare"):
        tiles, held_out = (read_tiles(each, config) for each in picked.values())
    with clock.span("tune"):
        parts = make_parts(config, tiles, held_out)
    return (train, validation), parts


def _conclude(
    config: DetectionConfig, out: Path, parts: Parts, fitted: Fitted, slides: Slides, clock: Clock, imported: float
) -> dict[str, Any]:
    """Heat maps and FROC by the best weights, the summary and the page."""
    network = parts.validated
    network.load_state_dict(read_checkpoint(out / CHECKPOINTS / BEST_PT)["weights"])
    network.eval()
    with clock.span("slides"):
        froc, results, why = evaluate_slides(parts.scorer(), slides[1], config, out)
    if why:
        log.warning("no FROC: %s", why)
    content = write_froc(out, froc, results, why)
    spans = clock.seconds
    summary: dict[str, Any] = {
        "status": fitted.status,
        "kind": "detection",
        "name": Path(config.data.source).name,
        "best": {"metric": "auc", "value": fitted.best.value, "step": fitted.best.step},
        "last": asdict(fitted.last) if fitted.last is not None else None,
        "froc": {name: content.get(name) for name in ("score", "rates", "sensitivity", "lesions", "images", "why")},
        "steps": fitted.step,
        "position": parts.paced.position(fitted.step),
        "samples_per_s": fitted.samples_per_s,
        "wait_share": fitted.wait_share,
        "skipped_updates": int(parts.step.update.skipped),
        "seconds": {"total": clock.elapsed, "import": imported, **spans},
        "slides": {"train": len(slides[0]), "validation": len(slides[1])},
        "tiles": {"train": parts.num_tiles, "validation": len(parts.validation.label)},
        "engaged": {name: asdict(engaged) for name, engaged in parts.engaged.items()},
        "environment": environment(),
    }
    write_json(out / SUMMARY_JSON, summary)
    write_page(out, summary, content, results)
    return summary
