"""The main job: from a configuration to a trained network in a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.cache.build import get_arena
from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.engine.checkpoint import read_checkpoint
from hasten.engine.job import Planned, build_net, plan_run, plan_to_dict
from hasten.engine.loop import Loop
from hasten.engine.parts import build_parts
from hasten.engine.settle import settle_variant
from hasten.engine.summary import write_examples, write_summary
from hasten.observe.clock import Clock, process_start_seconds
from hasten.observe.env import environment
from hasten.observe.progress import Progress
from hasten.observe.rundir import CHECKPOINTS, ENV_JSON, PLAN_JSON, RUN_YAML, create_run_dir, write_json


def make_plan(config: RunConfig) -> dict[str, Any]:
    """The plan for a configuration: fingerprint, and each decision with its reason. Nothing is trained or written."""
    return plan_to_dict(plan_run(config))


def train(
    config: RunConfig,
    out: Path,
    *,
    plan: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train in the run directory `out` and return its summary (what summary.json holds).

    plan: decisions to take where `config` leaves a field open. resume: go on from checkpoints/last.pt with `config` as
    run.yaml has it; on a CPU the result is bit for bit that of a run that was never stopped.
    Raises ValueError for bad input before anything is trained; KeyboardInterrupt after saving, on Ctrl-C.
    """
    out = Path(out)
    clock = Clock()
    started = process_start_seconds()
    existed = out.exists()
    create_run_dir(out, resume=resume)
    try:
        with clock.span("read_plan"):
            planned = plan_run(config, plan)
        with clock.span("prepare"):
            arena = get_arena(
                planned.case_set, planned.config.prepare, planned.config.cache, device=str(planned.device)
            )
        with clock.span("tune"):
            network = build_net(planned)
            planned, engaged = settle_variant(planned, network)
        parts = build_parts(planned, arena, network, clock, engaged)
    except BaseException:
        if not resume:
            _remove_empty(out, itself=not existed)
        raise
    last = out / CHECKPOINTS / "last.pt"
    state = read_checkpoint(last) if resume and last.exists() else None
    _write_records(out, parts.planned, resume=resume)
    first, elapsed = (state["step"], state["elapsed"]) if state else (0, 0.0)
    loop = Loop(parts, out, clock, progress, first=first, elapsed=elapsed)
    if state:
        loop.restore(state)
    outcome = loop.run()
    write_examples(out, parts, outcome)
    summary = write_summary(out, parts, clock, outcome, import_seconds=started)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt(f"stopped at step {outcome.step}; go on with: hasten train --resume --out {out}")
    return summary


def _write_records(out: Path, planned: Planned, *, resume: bool) -> None:
    write_json(out / ENV_JSON, environment())
    (out / RUN_YAML).write_text(dump_run(planned.config))
    if not resume or not (out / PLAN_JSON).exists():
        write_json(out / PLAN_JSON, plan_to_dict(planned))


def _remove_empty(out: Path, *, itself: bool) -> None:
    """Take back the directories that this run made, so that the same command can be given again."""
    folder = out / CHECKPOINTS
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if itself and out.is_dir() and not any(out.iterdir()):
        out.rmdir()
