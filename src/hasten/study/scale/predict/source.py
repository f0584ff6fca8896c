"""Sources for fitting the model: the logs of a scaling study, or a run of one process and a network."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hasten.config.yaml_file import load_yaml
from hasten.observe.rundir import CHECKPOINTS, RANKS
from hasten.observe.values import integer, mapping, number
from hasten.report.read import Run, read_run
from hasten.study.finding import ms
from hasten.study.scale.log import Log
from hasten.study.scale.log_folder import read_logs
from hasten.study.scale.predict.fit import Fitted, fit_epochs, resample
from hasten.study.scale.predict.links import LINKS, USUAL_LINK, Network
from hasten.study.scale.predict.model import Mode, Training
from hasten.study.scale.run_logs import SINGLE, entry_from_files, is_run

FIXED_SHARE = 0.05
"""Assumed share of a step that doesn't shrink with the batch: launches, the optimizer, small layers."""
_GRADIENT = {"fp32": 4, "fp16": 2, "bf16": 2}
_FEWEST_LINES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A fitted model and other facts from its source."""

    name: str
    fitted: Fitted
    epochs_only: bool
    """Whether only epochs are known, so that no step times can be reported."""
    mode: Mode
    batch: int | None = None
    """Samples of a step in one process, if that is known."""
    measured: tuple[tuple[int, float], ...] = ()
    """(workers, seconds of an epoch) of the logs."""
    strategy: str = ""


def source_of(
    folder: Path,
    *,
    network: Network | None,
    mode: Mode | None,
    strategy: str | None = None,
    gradient_mib: float | None = None,
    epochs: float | None = None,
    imbalance: float = 0.0,
) -> Source:
    """The model fitted to `folder`: a scaling study's logs, or the run of one process.

    network, gradient_mib, epochs, imbalance: for a run only; network None is `USUAL_LINK` there, with a note. mode: of
    logs without a mode, and of what is predicted; None: theirs, else weak. Raises ValueError for what can't be
    fitted, and for options that don't apply to the source.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name one with a scaling study's logs, or the folder of a run")
    if is_run(folder):
        if strategy is not None:
            raise ValueError(f"--strategy {strategy}: for logs of several; {folder} is one run, so leave it out")
        assumed = (f"The network is assumed to be {USUAL_LINK}; name yours by --link or --inter.",)
        joined = network or Network(between=LINKS[USUAL_LINK])
        source = _from_run(folder, joined, mode or "weak", gradient_mib, epochs, imbalance)
        notes = (assumed if network is None else ()) + source.fitted.notes
        return replace(source, fitted=replace(source.fitted, notes=notes))
    if network is not None or gradient_mib is not None or epochs is not None or imbalance:
        raise ValueError(
            f"{folder}: logs state what communication cost on their own network, not what was sent, so --link, "
            "--inter, --gradient-mib, --epochs and --imbalance are for the folder of a run; leave them out"
        )
    return _from_logs(folder, read_logs(folder).logs, mode, strategy)


def _from_logs(folder: Path, logs: Sequence[Log], mode: Mode | None, strategy: str | None) -> Source:
    timed = [log for log in logs if log.epoch_s(None)]
    names = sorted({log.strategy for log in timed if log.strategy != SINGLE})
    if strategy is not None and strategy not in names:
        raise ValueError(f"--strategy {strategy}: {folder} holds no log of it; there is {', '.join(names) or 'none'}")
    strategy_name = strategy or _fastest(timed, names)
    used = [log for log in timed if log.strategy in (strategy_name, SINGLE)]
    modes: set[str] = {log.mode for log in used if log.mode}
    if mode is None:
        if len(modes) > 1:
            raise ValueError(f"{folder}: holds logs of weak and strong scaling; take one kind away, or name --mode")
        mode = "strong" if modes == {"strong"} else "weak"
    elif modes and mode not in modes:
        raise ValueError(f"--mode {mode}: the logs in {folder} are of {', '.join(sorted(modes))} scaling; leave it out")
    epochs, errors = {}, {}
    for world in sorted({log.world for log in used}):
        logs_of = [log for log in used if log.world == world]
        seconds = [log.epoch_s(None) or 0.0 for log in logs_of]
        later = [[value for index, value in log.epochs.items() if index > 0] for log in logs_of]
        epochs[world] = statistics.median(seconds)
        # A median of epochs varies more than their mean.
        errors[world] = max(_error(seconds), *(1.25 * _error(each) for each in later))
    fitted = fit_epochs(epochs, mode=mode, errors=errors, source=f"{folder} ({strategy_name})")
    others = [name for name in names if name != strategy_name]
    notes = (
        f"Strategy: {strategy_name}, {'stated as' if modes else 'taken as'} {mode} scaling"
        + (f"; {', '.join(others)} also there, by --strategy." if others else "."),
        *fitted.notes,
        f"Measured on up to {max(epochs)} workers: beyond that, the network is assumed to stay as measured.",
    )
    return Source(
        name=folder.name or str(folder),
        fitted=replace(fitted, notes=notes),
        epochs_only=True,
        mode=mode,
        measured=tuple(epochs.items()),
        strategy=strategy_name,
    )


def _fastest(logs: Sequence[Log], names: Sequence[str]) -> str:
    """The strategy with the shortest epoch on the most workers that any has."""
    if not names:
        return SINGLE

    def place(name: str) -> tuple[int, float]:
        of_name = [(log.world, log.epoch_s(None) or 0.0) for log in logs if log.strategy == name]
        most = max(of_name)[0]
        return -most, statistics.median(seconds for world, seconds in of_name if world == most)

    return min(names, key=place)


def _error(seconds: Sequence[float]) -> float:
    """Relative standard error of a mean; 0 for a single value."""
    if len(seconds) < 2:
        return 0.0
    return statistics.stdev(seconds) / statistics.mean(seconds) / math.sqrt(len(seconds))


def _from_run(
    folder: Path,
    network: Network,
    mode: Mode,
    gradient_mib: float | None,
    epochs: float | None,
    imbalance: float,
) -> Source:
    run = read_run(folder)
    # An unfinished run of several processes has files that all ranks but the first write.
    if entry_from_files(folder).world > 1 or any((folder / RANKS).glob("rank-[1-9]*.jsonl")):
        raise ValueError(
            f"{folder}: was trained by several processes, whose steps hold their communication; give the run of one "
            "process, or a folder with runs of several counts"
        )
    settings = mapping(load_yaml(run.config)) if run.config else {}
    batch = integer(mapping(settings.get("sample")).get("batch_size"))
    steps = _steps(run, batch)
    if batch is None or len(steps) < _FEWEST_LINES - 1:
        raise ValueError(
            f"{folder}: its metrics.jsonl has the pace of {len(steps)} stretches of steps after the first line, and "
            f"{_FEWEST_LINES - 1} are needed; train it for longer, or with a smaller train.log_every"
        )
    distribute = mapping(settings.get("distribute"))
    width = _GRADIENT.get(str(distribute.get("gradients")), 4)
    size = gradient_mib * 2**20 if gradient_mib is not None else _num_weights(folder) * width
    training = replace(_training(run, steps, batch, size, distribute, epochs), imbalance=imbalance)
    compute = training.compute_s
    noise = _noise(steps)
    errors = {
        "compute_s": max(noise / math.sqrt(len(steps)) / compute, 0.02),
        "spread": 1 / math.sqrt(2 * len(steps)),
        "fixed_s": 0.8,
        "backward_share": 0.1,
        "overlap": 0.1,
    }
    notes = (
        f"Measured on one process: a step of {ms(compute)}, varying by {100 * training.spread:.1f} %, "
        f"{size / 2**20:.4g} MiB of gradients.",
        "Assumed: two thirds of a step is the backward pass, and 95 % of what it could hide it hides"
        + (f"; {100 * FIXED_SHARE:.0f} % of a step don't shrink with the batch." if mode == "strong" else "."),
        f"Network: {network}.",
    )
    return Source(
        name=run.name or folder.name,
        fitted=resample(training, network, errors=errors, notes=notes),
        epochs_only=False,
        mode=mode,
        batch=batch,
    )


def _training(
    run: Run,
    steps: Sequence[tuple[int, float, float]],
    batch: int,
    size: float,
    distribute: dict[str, Any],
    epochs: float | None,
) -> Training:
    busy = statistics.median(seconds * (1 - wait) for _, seconds, wait in steps)
    waited = statistics.fmean(seconds * wait for _, seconds, wait in steps)
    cases = run.cases.get("train")
    per_epoch = cases / batch if cases else None
    num_epochs = run.steps / per_epoch if run.steps and per_epoch else None
    rest = run.seconds
    known_s = sum(rest.get(name, 0.0) for name in ("train", "wait_for_data", "validate", "checkpoint"))
    bucket = number(distribute.get("bucket_mb"))
    return Training(
        compute_s=busy,
        gradient_bytes=size,
        fixed_s=FIXED_SHARE * busy,
        spread=_noise(steps) / busy,
        bucket_bytes=(bucket or 25.0) * 2**20,
        overlap=0.95 if distribute.get("overlap", True) else 0.0,
        # A wait on one process is a batch that takes longer than the step; one beside it isn't seen.
        data_s=busy + waited if waited > 0.01 * busy else 0.0,
        steps=per_epoch,
        validation_s=rest.get("validate", 0.0) / num_epochs if num_epochs else 0.0,
        checkpoint_s=rest.get("checkpoint", 0.0) / num_epochs if num_epochs else 0.0,
        startup_s=max(0.0, (run.total_s or 0.0) - known_s) if num_epochs else 0.0,
        epochs=epochs if epochs is not None else num_epochs,
    )


def _steps(run: Run, batch: int | None) -> list[tuple[int, float, float]]:
    """(steps, seconds of each, share of waiting) between the lines of metrics.jsonl, but for the first, a warm-up."""
    intervals = []
    for earlier, later in pairwise(run.train):
        count = later.step - earlier.step
        if count > 0 and later.samples_per_s and batch:
            intervals.append((count, batch / later.samples_per_s, min(1.0, max(0.0, later.wait_share or 0.0))))
    return intervals


def _noise(steps: Sequence[tuple[int, float, float]]) -> float:
    """Standard deviation of a step in seconds, from differences of neighbours, which excludes a common drift."""
    # A mean over n independent steps varies less by the root of n than one of them.
    work = [(count, seconds * (1 - wait)) for count, seconds, wait in steps]
    squares = [(b - a) ** 2 / (1 / n + 1 / m) for (n, a), (m, b) in pairwise(work)]
    return math.sqrt(statistics.fmean(squares)) if squares else 0.0


def _num_weights(folder: Path) -> int:
    """Floating-point numbers of the network, as the run's checkpoint holds them."""
    from hasten.engine.checkpoint import read_checkpoint

    for name, field in (("last.pt", "network"), ("best.pt", "weights")):
        path = folder / CHECKPOINTS / name
        if path.is_file():
            weights = mapping(read_checkpoint(path).get(field))
            return sum(tensor.numel() for tensor in weights.values() if tensor.is_floating_point())
    raise ValueError(
        f"{folder}: has no checkpoint with the size of the gradients; give it as --gradient-mib (4 bytes a weight)"
    )
