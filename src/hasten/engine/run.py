"""The main job: from a configuration to a trained network in a run directory."""

from __future__ import annotations

import dataclasses
import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hasten.cache.bus_error import bus_error_explained
from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.distribute.agree import by_first, from_first, on_all
from hasten.distribute.build import build_strategy
from hasten.distribute.group import joined
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import detect_world
from hasten.engine.checkpoints import Checkpoints
from hasten.engine.job import pick_device, plan_run, plan_to_dict
from hasten.engine.loop import Loop
from hasten.engine.measure import Engaged
from hasten.engine.outcome import Outcome
from hasten.engine.parts import Parts
from hasten.engine.ranks import seed_rank
from hasten.engine.stop import Stopped
from hasten.engine.summary import write_examples, write_summary
from hasten.engine.together import put_together
from hasten.observe.clock import Clock, process_start_seconds
from hasten.observe.env import environment
from hasten.observe.progress import Progress
from hasten.observe.rundir import (
    CHECKPOINTS,
    ENV_JSON,
    LOGS,
    PLAN_JSON,
    RANKS,
    RUN_YAML,
    SUMMARY_JSON,
    create_run_dir,
    write_json,
)
from hasten.observe.trackers import check_trackers


def make_plan(config: RunConfig) -> dict[str, Any]:
    """The plan for a configuration: fingerprint, and each decision with its reason. Nothing is trained or written."""
    return plan_to_dict(plan_run(config))


def train(
    config: RunConfig,
    out: str | Path,
    *,
    plan: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train in the run directory `out` and return its summary (what summary.json holds).

    plan: decisions to take where `config` leaves a field open. resume: go on from checkpoints/last.pt with `config` as
    run.yaml has it; on a CPU the result is bit for bit that of a run that was never stopped.
    Raises ValueError for bad input before anything is trained; Stopped, a KeyboardInterrupt, after saving, on Ctrl-C,
    SIGTERM or SIGUSR1.
    """
    missing = check_trackers(config.observe.trackers)
    if missing:
        raise ValueError("\n".join(missing))
    world = detect_world()
    with joined(world, config.distribute, pick_device(config.train.device, world)):
        strategy = build_strategy(config.distribute, world)
        try:
            return _train(config, Path(out), Path(plan) if plan is not None else None, resume, progress, strategy)
        finally:
            strategy.close()


def _train(
    config: RunConfig, out: Path, plan: Path | None, resume: bool, progress: Progress | None, strategy: Strategy
) -> dict[str, Any]:
    """`train` on every rank; rank 0 writes what belongs to the run as a whole."""
    world = strategy.world
    done = from_first(world, _complete(out, config) if resume and world.first else None)
    if done is not None:
        return done
    clock = Clock()
    started = process_start_seconds()
    existed = out.exists()
    on_all(world, lambda: _begin_folder(out, resume=resume) if world.first else None)
    try:
        parts = put_together(config, plan, clock, strategy)
        if resume:
            _keep_reasons(out, parts)
        # Before anything is written: a damaged checkpoint must leave the run as it was.
        loop = _make_loop(out, parts, clock, progress, resume=resume)
        if world.first:
            _write_records(out, parts, resume=resume)
    except BaseException:
        if not resume and world.first:
            _take_back(out, itself=not existed)
        raise
    try:
        mapped = bus_error_explained(parts.arena.files, _resume_command(out))
        with mapped, loop.observed if world.first else nullcontext():
            outcome = loop.run()
            summary = _conclude(out, loop, clock, outcome, import_seconds=started)
    except OSError as error:
        raise ValueError(
            f"{out}: the run was stopped, as it could not be written to ({error.strerror or error}); "
            f"make room there and go on with: {_resume_command(out)}"
        ) from error
    if outcome.status == "interrupted":
        assert loop.asked is not None
        said = f"stopped at step {outcome.step}; go on with: {_resume_command(out)}" if world.first else ""
        raise Stopped(said, loop.asked)
    return summary


def _begin_folder(out: Path, *, resume: bool) -> None:
    _clear_away(out, resume=resume)
    create_run_dir(out, resume=resume)


def _conclude(out: Path, loop: Loop, clock: Clock, outcome: Outcome, *, import_seconds: float) -> dict[str, Any]:
    """The summary on every rank, of what rank 0 writes."""
    summary: dict[str, Any] | None = None
    if loop.world.first:
        write_examples(out, loop.parts, outcome, loop.plain)
        summary = write_summary(out, loop.parts, clock, outcome, import_seconds=import_seconds)
        loop.observed.end(summary)
    return from_first(loop.world, summary)


def _make_loop(out: Path, parts: Parts, clock: Clock, progress: Progress | None, *, resume: bool) -> Loop:
    """The loop, at step 0 or where last.pt left it. Raises ValueError if that file is damaged or of other settings."""
    strategy, seed = parts.step.strategy, parts.planned.config.train.seed
    world = strategy.world
    # Measuring drew from torch's generator, or found its results in the cache and did not: dropout must not notice.
    seed_rank(seed, world)
    found = by_first(world, lambda: Checkpoints(out / CHECKPOINTS).newest() if resume else None)
    if found is None:
        return Loop(parts, out, clock, progress, first=0, elapsed=0.0)
    state = found.content

    def restored() -> Loop:
        try:
            loop = Loop(parts, out, clock, progress, first=found.step, elapsed=state["extra"]["elapsed"])
            loop.restore(state, str(found.path))
        except (RuntimeError, KeyError, ValueError) as error:
            reason = str(error).strip().splitlines()[0].removeprefix(f"{found.path}: ")
            raise ValueError(
                f"{found.path}: does not fit the run's settings ({reason}); "
                f"resume with the network, optimizer and precision that {out / RUN_YAML} had when it was written"
            ) from error
        return loop

    return on_all(world, restored)


def _resume_command(out: Path) -> str:
    return f"hasten train --resume --out {shlex.quote(str(out))}"


def _complete(out: Path, config: RunConfig) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do under `config`."""
    try:
        summary: dict[str, Any] = json.loads((out / SUMMARY_JSON).read_text())
        status, steps, target = summary["status"], summary["steps"], summary["target"]["value"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    through = status == "finished" and steps == config.train.steps
    return summary if through or (status == "target_reached" and target == config.train.target) else None


def _keep_reasons(out: Path, parts: Parts) -> None:
    """On resuming, a switch is on because run.yaml says so; what was measured when the run began says more."""
    try:
        before = json.loads((out / PLAN_JSON).read_text())["engaged"]
        kept = {name: Engaged(**engaged) for name, engaged in before.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for name, now in parts.engaged.items():
        if name in kept and kept[name].on == now.on and now.why.startswith("set in the configuration"):
            parts.engaged[name] = kept[name]


def _write_records(out: Path, parts: Parts, *, resume: bool) -> None:
    # First, and in one rename: without it a run that is killed can be neither resumed nor begun again.
    temporary = out / f".{RUN_YAML}"
    temporary.write_text(dump_run(parts.planned.config))
    temporary.replace(out / RUN_YAML)
    if not resume or not (out / PLAN_JSON).exists():
        engaged = {name: dataclasses.asdict(engaged) for name, engaged in parts.engaged.items()}
        write_json(out / PLAN_JSON, {**plan_to_dict(parts.planned), "engaged": engaged})
    write_json(out / ENV_JSON, environment())


def _clear_away(out: Path, *, resume: bool) -> None:
    """What a killed process left: half-written checkpoints, or a folder in which nothing had begun."""
    folder = out / CHECKPOINTS
    if resume:
        for left in folder.glob(".*.pt.*"):
            left.unlink(missing_ok=True)
    elif out.is_dir() and not {path.name for path in out.iterdir()} - {CHECKPOINTS, LOGS, RANKS, f".{RUN_YAML}"}:
        _take_back(out, itself=False)


def _take_back(out: Path, *, itself: bool) -> None:
    """Remove what this run made before its first step, so that the same command can be given again."""
    for name in (f".{RUN_YAML}", RUN_YAML, PLAN_JSON, ENV_JSON):
        (out / name).unlink(missing_ok=True)
    for folder in [out / CHECKPOINTS, out] if itself else [out / CHECKPOINTS]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
