"""Runs a scaling study: one training after another, each a separate process, recorded in scale.json for resuming."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.config.load import dump_run, load_run, to_dict
from hasten.config.schema import RunConfig, StrategyName
from hasten.config.settled import PlannedRun
from hasten.devices import device_count, kind_of
from hasten.doctor.script.launch import end_all
from hasten.observe.cores import usable_cores
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import write_json, write_text
from hasten.observe.values import mapping
from hasten.report import words
from hasten.report.read import read_run
from hasten.sample.share import share_mistake
from hasten.scaling.analyse import workers
from hasten.scaling.logs import DONE, RUNS_JSON, SINGLE, Mode, is_run
from hasten.system import text_of
from hasten.training.plan import RunPlan, plan_run

BASE_YAML = "scale.yaml"
"""The planned run that all trainings are variants of."""
_SETTINGS = "settings"
_PATIENCE_S = 60.0
"""Seconds that a training gets to save a checkpoint after it is interrupted."""
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STRATEGIES: tuple[StrategyName, ...] = ("ddp", "fsdp", "pipeline", "horovod")
"""Strategies that distribute a training among processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingArm:
    """One training."""

    strategy: StrategyName
    world: int
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.strategy}-{self.world}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.strategy}, {workers(self.world)}, seed {self.seed}"


def arms_of(worlds: Sequence[int], strategies: Sequence[StrategyName], seeds: Sequence[int]) -> list[TrainingArm]:
    """Every training in the order of running: all of one seed, then all of the next in reverse order.

    So a machine that becomes slower favours no number of workers. One process is trained once per seed, for all
    strategies.
    """
    arms: list[TrainingArm] = []
    alone: tuple[StrategyName, ...] = ("single",)
    for turn, seed in enumerate(seeds):
        of_seed = [
            TrainingArm(strategy=strategy, world=world, seed=seed)
            for world in worlds
            for strategy in (alone if world == 1 else strategies)
        ]
        arms += of_seed[:: 1 if turn % 2 == 0 else -1]
    return arms


def settings_of(base: PlannedRun, arm: TrainingArm, mode: Mode) -> PlannedRun:
    """What an arm trains with. base: a run of one process.

    Raises ValueError for a batch that can't be divided among the arm's processes.
    """
    config = weakly_scaled(base, arm.world) if mode == "weak" else base
    # The stages of a pipeline all see the whole batch.
    if arm.world > 1 and arm.strategy != "pipeline":
        mistake = share_mistake(config.sample.batch_size, config.train.accumulate, arm.world, config.distribute.parts)
        if mistake is not None:
            raise ValueError(f"{mistake}; --mode weak multiplies it with the workers")
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, seed=arm.seed),
        distribute=dataclasses.replace(config.distribute, strategy=arm.strategy),
    )


def weakly_scaled(config: PlannedRun, world: int) -> PlannedRun:
    """`config` with `world` times its batch, a learning rate in proportion, and steps for as many epochs as before."""
    if world == 1:
        return config
    batch, names = config.sample.batch_size, ("steps", "validate_every", "checkpoint_every")
    train = dataclasses.replace(
        config.train,
        learning_rate_batch=config.train.learning_rate_batch or batch,
        **{name: math.ceil(getattr(config.train, name) / world) for name in names},
    )
    sample = dataclasses.replace(config.sample, batch_size=batch * world)
    return dataclasses.replace(config, sample=sample, train=train)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRequest:
    """The options of a study."""

    worlds: tuple[int, ...]
    strategies: tuple[StrategyName, ...] = ("ddp",)
    seeds: tuple[int, ...] = (0,)
    mode: Mode = "strong"
    threads: int | None = None
    """Threads of each process; None divides the cores among them."""
    oversubscribe: bool = False
    """Allow more processes than cores."""

    def __post_init__(self) -> None:
        for name in ("worlds", "strategies", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"--{name}: must name at least one, each once (given {words.plain(list(values))})")
        if min(self.worlds) < 1 or min(self.seeds) < 0:
            raise ValueError("--worlds must be 1 or more, --seeds 0 or more")
        unknown = [name for name in self.strategies if name not in STRATEGIES]
        if unknown:
            raise ValueError(f"--strategies {', '.join(unknown)}: must be of {', '.join(STRATEGIES)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads {self.threads}: must be 1 or more")


def command_of(settings: Path, out: Path, world: int) -> list[str]:
    """The command line that trains by `settings` in `out` with `world` processes on this machine."""
    launch = ["launch", "--nproc", str(world), str(settings), "--out", str(out), "--quiet"]
    return [sys.executable, "-m", "hasten", *launch]


def start(command: Sequence[str], *, threads: int, log: Path) -> int:
    """Run the command to its end with its output in the file `log`, and return its exit code.

    threads: of each process. An interrupt or SIGTERM is passed on to the command, which gets time to save; then
    KeyboardInterrupt is raised.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _RANKS}
    environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with log.open("wb") as file, _sigterm_interrupts():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ValueError):  # on Windows, whose consoles send Ctrl-C to all processes
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        end_all(process, grace=0.0)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that no training is left running without its study."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_error(log: Path) -> str:
    """The line of a log that best explains its end: the last that begins with `error`, else the last."""
    lines = [line.strip() for line in text_of(log).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [""])[-1]


def run_study(
    config: RunConfig,
    out: Path,
    options: StudyRequest,
    *,
    echo: Callable[[str], None],
    begin: Callable[..., int] = start,
) -> list[dict[str, Any]]:
    """Run the requested trainings that are not complete, in `out`; returns the entries of scale.json in their order.

    A failing training is reported, and the others continue. echo: gets a line about each. begin: runs a command.
    Raises ValueError for settings that can't be studied, and if `out` holds another study.
    """
    planned = plan_run(config)
    _check(planned, options)
    arms = arms_of(options.worlds, options.strategies, options.seeds)
    settings = [settings_of(planned.config, arm, options.mode) for arm in arms]
    record = _study_record(out, planned.config, options)
    for number, (arm, one) in enumerate(zip(arms, settings, strict=True), start=1):
        place = f"{number}/{len(arms)}  {arm}"
        if _status(record, arm) in DONE:
            echo(f"{place}: done before")
            continue
        echo(f"{place} ...")
        entry = _train(out, arm, one, options, record, begin)
        echo(f"      {_outcome(entry)}")
    return list(record["runs"])


def _check(planned: RunPlan, options: StudyRequest) -> None:
    """Raise ValueError for a run that can't be studied, or not on this machine."""
    config, most, cores, cases = planned.config, max(options.worlds), usable_cores(), len(planned.train)
    if config.train.budget is not None:
        raise ValueError("train.budget: cuts the slower trainings short, so they can't be compared; leave it out")
    if config.distribute.strategy not in ("auto", SINGLE):
        raise ValueError(f"distribute.strategy: --strategies chooses it here; leave {config.distribute.strategy} out")
    if cases < most:
        raise ValueError(f"--worlds {most}: there are {cases} cases to train on, and each worker needs one")
    if kind_of(planned.device).accelerator:
        count = device_count(planned.device.type)
        if most > count:
            raise ValueError(f"--worlds {most}: this machine has {count} GPUs, one for each worker")
    elif most > cores and not options.oversubscribe:
        raise ValueError(
            f"--worlds {most}: this machine has {cores} cores, and workers that take turns on them say nothing of "
            f"scaling; ask for {cores} at most, or add --oversubscribe to train anyway"
        )


def _study_record(out: Path, base: RunConfig, options: StudyRequest) -> dict[str, Any]:
    """The content of scale.json, new or of the study to resume. Raises ValueError if `out` holds anything else."""
    settings = {"mode": options.mode, "threads": options.threads}
    path = out / RUNS_JSON
    try:
        if not out.exists() or not any(out.iterdir()):
            out.mkdir(parents=True, exist_ok=True)
            write_text(out / BASE_YAML, dump_run(base))
            record = {_SETTINGS: settings, "runs": []}
            write_json(path, record)
            return record
        existing = mapping(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ValueError(f"--out {out}: can't be used ({error}); choose another folder") from None
    if not (out / BASE_YAML).is_file() or not isinstance(existing.get("runs"), list) or _SETTINGS not in existing:
        raise ValueError(f"--out {out}: is not empty and holds no study to continue; choose another folder")
    before, now = to_dict(load_run(out / BASE_YAML)), to_dict(base)
    changed = [name for name in now if before[name] != now[name]] + ["scale"] * (existing[_SETTINGS] != settings)
    if changed:
        raise ValueError(
            f"--out {out}: holds a study of other settings ({', '.join(changed)}); choose another folder, or give the "
            f"settings of {BASE_YAML} to continue it"
        )
    return existing


def _status(record: dict[str, Any], arm: TrainingArm) -> str | None:
    return next((entry.get("status") for entry in record["runs"] if entry.get("folder") == arm.folder), None)


def _train(
    out: Path,
    arm: TrainingArm,
    config: RunConfig,
    options: StudyRequest,
    record: dict[str, Any],
    begin: Callable[..., int],
) -> dict[str, Any]:
    """Train an arm from the start, replacing an incomplete run, and store its entry in `record` and scale.json."""
    threads = options.threads or max(1, usable_cores() // arm.world)
    folder, settings, log = out / arm.folder, out / f"{arm.folder}.yaml", out / f"{arm.folder}.log"
    if folder.exists() and _status(record, arm) is None:
        raise ValueError(f"{folder}: is in the way of {arm}, and not of this study; move it away")
    shutil.rmtree(folder, ignore_errors=True)
    entry: dict[str, Any] = {
        **dataclasses.asdict(arm),
        "mode": options.mode,
        "folder": arm.folder,
        "status": "running",
        "threads": threads,
        "batch_size": config.sample.batch_size,
        "steps": config.train.steps,
    }
    record["runs"] = [one for one in record["runs"] if one.get("folder") != arm.folder] + [entry]
    write_json(out / RUNS_JSON, record)
    write_text(settings, dump_run(config))
    meter = LoadMeter()
    begun = time.perf_counter()
    try:
        code = begin(command_of(settings, folder, arm.world), threads=threads, log=log)
    except BaseException:
        entry["status"] = "interrupted"
        write_json(out / RUNS_JSON, record)
        raise
    entry |= {"seconds": time.perf_counter() - begun, "exit_code": code, "others_cores": meter.others()}
    entry |= _ended(folder, code, log)
    write_json(out / RUNS_JSON, record)
    return entry


def _ended(folder: Path, code: int, log: Path) -> dict[str, Any]:
    run = read_run(folder) if code == 0 and is_run(folder) else None
    if run is not None and run.status in DONE:
        return {"status": run.status, run.metric.removeprefix("mean_"): run.best_score}
    why = last_error(log)
    return {"status": "failed", "why": f"exit code {code}{f', {why}' if why else ''} (see {log.name})"}


def _outcome(entry: dict[str, Any]) -> str:
    if entry["status"] not in DONE:
        return f"failed: {entry['why']}"
    scores = [(SHOWN[name], entry.get(name)) for name in SHOWN]
    quality = "".join(f", {name} {score:.3f}" for name, score in scores if isinstance(score, float))
    return f"{words.duration(entry['seconds'])}{quality}"
