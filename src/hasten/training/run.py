"""The main job: from a configuration to a trained network in a run directory."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.checkpoint.custom_network import with_code
from hasten.checkpoint.file import Checkpoints
from hasten.checkpoint.recorded_split import split_record
from hasten.config.decision import Accelerator, Accelerators
from hasten.config.load import dump_run, load_run
from hasten.config.resume_rules import RUN_RULES, Changes
from hasten.config.schema import RunConfig
from hasten.distribute.build_strategy import build_strategy
from hasten.distribute.consensus import broadcast_from_rank0, run_on_all_ranks, run_on_rank0
from hasten.distribute.group import process_group
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World, detect_world
from hasten.files import replacing
from hasten.kernels.use import triton_as, try_triton_ahead
from hasten.nets.cpu.library import build_ahead
from hasten.nets.random_state import all_random_states_kept
from hasten.observe.clock import Clock, Spent
from hasten.observe.env import environment
from hasten.observe.lock import run_lock
from hasten.observe.notebook import Summary, cell_progress
from hasten.observe.progress import Progress
from hasten.observe.rundir import (
    CHECKPOINTS,
    ENV_JSON,
    NETWORK_PY,
    PLAN_JSON,
    RUN_YAML,
    SUMMARY_JSON,
    WEIGHTS_JSON,
    create_run_dir,
    undo_start,
    write_json,
)
from hasten.observe.trackers import check_trackers
from hasten.runtime.core_follower import cores_followed
from hasten.runtime.device import current_device, pick_device
from hasten.training.components import Evaluator, LoopComponents, RunComponents
from hasten.training.compose import prepare_run
from hasten.training.loop import Loop
from hasten.training.plan import plan_to_dict
from hasten.training.ranks import seed_rank
from hasten.training.resume import complete_summary, resumed_run, tell_changes
from hasten.training.stop import Stopped
from hasten.training.summary import write_examples, write_summary
from hasten.training.validate import CaseEvaluator

log = logging.getLogger(__name__)


def train(
    config: RunConfig,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    started: float | None = None,
    reserve_s: float = 0.0,
    network: Callable[..., nn.Module] | None = None,
    weights: str | Path | None = None,
    loss: Callable[..., Any] | None = None,
    augment: Any = None,
) -> dict[str, Any]:
    """Train in the run directory `out`. torch's random generators are as before afterwards.

    Args:
        config: settings; what is None is decided by the plan.
        out: new or empty folder, unless `resume`.
        resume: continue from checkpoints/last.pt, with the values of run.yaml where `config` leaves a field open; on a
            CPU bit for bit as a run that was never stopped.
        progress: what to call with the run's progress; None shows it in the cell of a notebook, and nowhere else.
        started: value of `time.perf_counter()` from which the run's seconds count (`process_start()` counts the
            imports); None is now.
        reserve_s: seconds of `train.budget` that the caller needs after this returns, for a report say.
        network: a class or function at the top of a file or module, as `network.name` would name it.
        weights: as `network.weights`.
        loss: a function of scores and labels, or a class of such, at the top of a file or module, as `loss.name` would
            name it.
        augment: a chain at the top of a file or module, or a function that returns one, as `augment.chain` would name
            it.

    Returns:
        The summary, as summary.json holds it.

    Raises:
        ValueError: for bad input, another run in `out`, or settings that can't change on resuming, before anything is
            trained.
        Stopped: a KeyboardInterrupt, after saving, on Ctrl-C, SIGTERM or SIGUSR1.

    Example:
        >>> config = hasten.load_run(overrides=["data.source=path/to/dataset", "train.budget=2min"])
        >>> summary = hasten.train(config, "runs/first")
        >>> best = summary["best"]
    """
    progress = progress or cell_progress()
    missing = check_trackers(config.observe.trackers)
    if missing:
        raise ValueError("\n".join(missing))
    config = with_code(config, network=network, weights=weights, loss=loss, augment=augment)
    clock, world = Clock(started, progress.tell if progress else None), detect_world()
    device = pick_device(config.train.device, world)
    build_ahead()
    if config.train.fused_kernels is not False:
        try_triton_ahead(device)
    with (
        current_device(device),
        process_group(world, config.distribute, device),
        all_random_states_kept(device),
        cores_followed(device),
        closing(build_strategy(config.distribute, world)) as strategy,
        ExitStack() as stack,
    ):
        lock = run_lock(Path(out), resume=resume, patient=world.restarts > 0)
        run_on_all_ranks(world, lambda: stack.enter_context(lock) if world.first else None)
        summary = _train(config, Path(out), resume, progress, strategy, device, clock, reserve_s)
    return Summary(summary)


def _train(
    config: RunConfig,
    out: Path,
    resume: bool,
    progress: Progress | None,
    strategy: Strategy,
    device: torch.device,
    clock: Clock,
    reserve_s: float,
) -> dict[str, Any]:
    """`train` on every rank; rank 0 writes what belongs to the run as a whole."""
    world = strategy.world
    clock.span("import").add(clock.elapsed)
    changes = Changes()
    if resume:
        before = run_on_rank0(world, lambda: load_run(out / RUN_YAML))
        config, changes = run_on_all_ranks(world, lambda: resumed_run(before, config))
        earlier = run_on_rank0(world, lambda: complete_summary(out, config, changes))
        if earlier is not None:
            return earlier
    with triton_as(config.train.fused_kernels):
        with starting(out, world, resume=resume):
            going_on = run_on_rank0(world, lambda: resume and Checkpoints(out / CHECKPOINTS).path.exists())
            components = prepare_run(config, clock, strategy, device, resume=going_on, begun=out if resume else None)
            if resume:
                components = dataclasses.replace(
                    components, accelerators=_with_first_reasons(out, components.accelerators)
                )
            # Before anything is written: a damaged checkpoint must leave the run as it was.
            evaluator = CaseEvaluator(components)
            loop = make_loop(out, components, evaluator, clock, progress, resume=resume, reserve_s=reserve_s)
            loop.limit.require(clock)
            if loop.first:
                clock.tell(f"resuming   at step {loop.first} of {loop.steps}")
            if world.first:
                _write_records(out, components, loop.accelerators, resume=resume)
                if changes:
                    tell_changes(out, loop.first, changes, RUN_RULES)
        conclude = partial(_conclude, out, loop, components, evaluator)
        return run_loop(out, loop, conclude)


@contextmanager
def starting(out: Path, world: World, *, resume: bool) -> Iterator[None]:
    """Make the run's directory for the block, which prepares the run; if it fails, nothing is left of a new one."""
    run_on_all_ranks(world, lambda: create_run_dir(out, resume=resume) if world.first else None)
    try:
        yield
    except BaseException:
        if not resume and world.first:
            undo_start(out)
        raise


def run_loop(out: Path, loop: Loop, conclude: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Train, and return the summary, which `conclude` makes.

    Raises ValueError where the directory can't be written to; Stopped, after saving, for an interrupted run.
    """
    command = f"hasten train --resume --out {shlex.quote(str(out))}"
    try:
        with loop.records.running():
            loop.run()
            summary = conclude()
            if loop.status == "interrupted":
                assert loop.stop_signal is not None
                message = f"stopped at step {loop.done}; continue with: {command}" if loop.world.first else ""
                raise Stopped(message, loop.stop_signal)
    except OSError as error:
        raise ValueError(
            f"{error.filename or out}: the run was stopped, as this could not be written to "
            f"({error.strerror or error}); make room there and continue with: {command}"
        ) from error
    return summary


def _conclude(out: Path, loop: Loop, components: RunComponents, evaluator: CaseEvaluator) -> dict[str, Any]:
    """The summary on every rank, of what rank 0 writes."""
    summary: dict[str, Any] | None = None
    if loop.world.first:
        if loop.limit.left_s > loop.limit.closing_s:  # the inference for the report fits
            write_examples(out, components, loop, evaluator.covers.inference)
        planned, metric = components.planned, f"mean_{loop.evaluator.metric}"
        cases = {"train": len(planned.train), "validation": len(planned.validation)}
        summary = write_summary(out, loop, {"name": planned.case_set.name, "cases": cases}, metric=metric)
    return broadcast_from_rank0(loop.world, summary)


def make_loop(
    out: Path,
    components: LoopComponents,
    evaluator: Evaluator,
    clock: Clock,
    progress: Progress | None,
    *,
    resume: bool,
    reserve_s: float,
) -> Loop:
    """The loop, at step 0 or where last.pt left it. Raises ValueError if that file is damaged or of other settings."""
    strategy, seed = components.step.strategy, components.train.seed
    world = strategy.world
    # Measuring draws from torch's generator unless its results are cached: dropout must not depend on that.
    seed_rank(seed, world)
    make = partial(Loop, components, evaluator, out, clock, progress, reserve_s=reserve_s)
    state = run_on_rank0(world, lambda: _newest(out) if resume else None)
    if state is None:
        return make(first=0, earlier=Spent())
    path, done, steps = Checkpoints(out / CHECKPOINTS).path, state["step"], components.train.steps

    def restored() -> Loop:
        if steps < done:
            raise ValueError(f"train.steps={steps}: the run in {out} has done {done} steps; give as many or more")
        try:
            loop = make(first=done, earlier=Spent(**state["extra"]["spent"]))
            loop.restore(state, str(path))
        except (RuntimeError, KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0].removeprefix(f"{path}: ")
            raise ValueError(
                f"{path}: does not fit the run's settings ({reason}); "
                f"resume with the network, optimizer and precision that {out / RUN_YAML} had when it was written"
            ) from error
        return loop

    return run_on_all_ranks(world, restored)


def _newest(out: Path) -> dict[str, Any] | None:
    """The checkpoint to resume from; None, with a warning, where the run stopped before it wrote one."""
    checkpoints = Checkpoints(out / CHECKPOINTS)
    checkpoint = checkpoints.newest()
    if checkpoint is None and (out / SUMMARY_JSON).exists():
        remedy = "restore it from a copy, or train into another --out"
        raise ValueError(f"{checkpoints.path}: missing, though the run in {out} had ended; {remedy}")
    if checkpoint is None:
        log.warning("%s: was stopped before its first checkpoint, and starts again at its first step", out)
    return checkpoint


def _with_first_reasons(out: Path, accelerators: Accelerators) -> Accelerators:
    """The accelerators of a resumed run; of those that run.yaml sets by now, with how they were settled at first."""
    try:
        content = json.loads((out / PLAN_JSON).read_bytes())["accelerators"]
        earlier = {name: Accelerator(**each) for name, each in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return accelerators
    # run.yaml holds what was measured, so that a resumed run reads it as set by the user.
    for name, now in accelerators.items():
        first = earlier.get(name, now)
        if now.set_by == "user" and first.set_by != "user" and first.on == now.on:
            accelerators = {**accelerators, name: first}
    return accelerators


def write_start(out: Path, config: Any) -> None:
    """Write run.yaml and env.json."""
    # In one rename: without it a run that is killed can be neither resumed nor begun again.
    with replacing(out / RUN_YAML, out / f".{RUN_YAML}", durable=False) as file:
        file.write(dump_run(config).encode())
    write_json(out / ENV_JSON, environment())


def _write_records(out: Path, components: RunComponents, accelerators: Accelerators, *, resume: bool) -> None:
    write_start(out, components.planned.config)
    if components.planned.source:
        (out / CHECKPOINTS / NETWORK_PY).write_bytes(components.planned.source)
    if not resume or not (out / PLAN_JSON).exists():
        settled = {name: dataclasses.asdict(each) for name, each in accelerators.items()}
        cases = split_record(components.planned.train, components.planned.validation)
        write_json(out / PLAN_JSON, {"cases": cases, **plan_to_dict(components.planned), "accelerators": settled})
    if components.start is not None:
        write_json(out / WEIGHTS_JSON, components.start)
