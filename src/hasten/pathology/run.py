"""`train_detection`: from slides to a classifier, heat maps and FROC, in a run directory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hasten.cases.slide.listing import SlideCase, find_slides, split_slides
from hasten.cases.types import Case
from hasten.checkpoint.file import read_checkpoint
from hasten.checkpoint.recorded_split import require_same_cases, split_record
from hasten.config.resume_rules import Changes
from hasten.distribute.world import detect_world
from hasten.nets.random_state import all_random_states_kept
from hasten.observe.clock import Clock
from hasten.observe.lock import run_lock
from hasten.observe.progress import Progress
from hasten.observe.rundir import BEST_PT, CHECKPOINTS, PLAN_JSON, RUN_YAML, write_json
from hasten.observe.trackers import check_trackers
from hasten.pathology.compose import TileEvaluator, compose_slides, scorer_of
from hasten.pathology.config import DETECTION_RULES, DetectionConfig, load
from hasten.pathology.evaluate import evaluate_slides, heat_map_cells
from hasten.pathology.page import write_page
from hasten.pathology.tiles import pick_tiles, read_tiles, require_both
from hasten.runtime.device import current_device, pick_device
from hasten.runtime.variant import variant_of
from hasten.training.components import LoopComponents
from hasten.training.loop import Loop
from hasten.training.resume import require_use, resumed_settings, tell_changes
from hasten.training.run import make_loop, run_loop, starting, write_start
from hasten.training.summary import write_summary

log = logging.getLogger(__name__)

Slides = tuple[tuple[SlideCase, ...], tuple[SlideCase, ...]]


def train_detection(
    config: DetectionConfig,
    out: str | Path,
    progress: Progress | None = None,
    *,
    resume: bool = False,
    started: float | None = None,
    reserve_s: float = 0.0,
) -> dict[str, Any]:
    """Train on the slides of `data.source` in the run directory `out`, and return what its summary.json holds.

    Writes run.yaml, env.json, metrics.jsonl, checkpoints/, and of the slides that were held out heat_maps/,
    detections.csv, froc.json and report.html. resume: continue from checkpoints/last.pt; on a CPU the result is bit for
    bit that of a run that was never stopped. Raises ValueError for bad input before anything is trained; Stopped, a
    KeyboardInterrupt, after saving, on Ctrl-C, SIGTERM or SIGUSR1. started, reserve_s: as in `hasten.train`.
    """
    world, out = detect_world(), Path(out)
    mistakes = check_trackers(config.observe.trackers)
    if world.size > 1:
        mistakes.append("a run on slides is one process's; start it without a launcher, or one run a process")
    if mistakes:
        raise ValueError("\n".join(mistakes))
    clock = Clock(started, progress.tell if progress else None)
    clock.span("import").add(clock.elapsed)
    changes = Changes()
    lock = run_lock(out, resume=resume, patient=world.restarts > 0)
    device = pick_device(config.train.device)
    with lock, current_device(device), all_random_states_kept(device):
        if resume:
            config, changes = resumed_settings(load(out / RUN_YAML), config, DETECTION_RULES)
        with starting(out, world, resume=resume):
            with clock.span("read_plan"):
                slides = _slides(config)
            if resume:
                require_same_cases(out, *map(_as_cases, slides))
            components, evaluator = _prepare(config, slides, clock)
            loop = make_loop(out, components, evaluator, clock, progress, resume=resume, reserve_s=reserve_s)
            if resume and components.paced.done(loop.first):
                require_use(out, changes, DETECTION_RULES, "train.steps")
            loop.limit.require(clock)
            if loop.first:
                clock.tell(f"resuming   at step {loop.first} of {loop.steps}")
            write_start(out, config)
            if not resume:
                write_json(out / PLAN_JSON, {"cases": split_record(*map(_as_cases, slides))})
            if changes:
                tell_changes(out, loop.first, changes, DETECTION_RULES)
        return run_loop(out, loop, partial(_conclude, out, loop, evaluator, slides))


def _slides(config: DetectionConfig) -> Slides:
    """Training and validation slides. Raises ValueError where none are named, or one part would be empty."""
    if not config.data.source:
        raise ValueError(
            "data.source: names no slides; give a folder with slides/ and masks/, or a list (hasten recipe phantom "
            "pathology --to DIR makes some)"
        )
    return split_slides(find_slides(config.data.source), config.data.fraction)


def _as_cases(slides: Iterable[SlideCase]) -> list[Case]:
    return [Case(id=each.id, image=(each.slide,), label=each.mask) for each in slides]


def _prepare(config: DetectionConfig, slides: Slides, clock: Clock) -> tuple[LoopComponents, TileEvaluator]:
    """Everything before the first step. Raises ValueError for data that can't be trained on."""
    train, validation = slides
    with clock.span("read_plan"):
        picked = {"training": pick_tiles(train, config), "validation": pick_tiles(validation, config)}
        for what, each in picked.items():
            require_both(each, what)
        # Only a time limit needs an estimate of the heat maps' duration.
        cells = heat_map_cells(validation, config) if config.train.budget is not None else 0
    with clock.span("prepare"):
        tiles, held_out = (read_tiles(each, config) for each in picked.values())
    with clock.span("tune"):
        components = compose_slides(config, tiles, clock.left(config.train.budget))
    variant, device = variant_of(components.train), components.step.device
    return components, TileEvaluator(config=config, variant=variant, device=device, tiles=held_out, cells=cells)


def _conclude(out: Path, loop: Loop, evaluator: TileEvaluator, slides: Slides) -> dict[str, Any]:
    """Heat maps and FROC by the best weights, the summary and the page; nothing of an interrupted run."""
    if loop.status == "interrupted":
        return {}
    config, network = evaluator.config, loop.components.validated
    network.load_state_dict(read_checkpoint(out / CHECKPOINTS / BEST_PT)["weights"])
    with loop.clock.span("slides"):
        scorer = scorer_of(network.eval(), config, evaluator.variant, evaluator.device)
        content = evaluate_slides(scorer, slides[1], config, out)
    if content["score"] is None:
        log.warning("no FROC: %s", content["why"])
    about = {
        "kind": config.kind,
        "name": Path(config.data.source).name,
        "last": asdict(loop.last) if loop.last is not None else None,
        "froc": {name: content.get(name) for name in ("score", "rates", "sensitivity", "lesions", "images", "why")},
        "slides": {"train": len(slides[0]), "validation": len(slides[1])},
        "tiles": {"train": len(loop.components.program.latest.store.ids), "validation": len(evaluator.tiles.label)},
    }
    summary = write_summary(out, loop, about, metric=evaluator.metric)
    write_page(out, summary, content)
    return summary
