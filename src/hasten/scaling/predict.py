"""Predicts how a training scales to more workers, in closed form, with a range.

step  = compute of the slowest worker + the part of the gradients' all-reduce that the backward pass does not hide
epoch = steps * step + validation / workers + what does not shrink

An all-reduce costs a latency for each message and a time for each byte, as in R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of Collective Communication Operations in MPICH" (2005). Logs of several numbers of workers fix all
parameters; of a run of one process the network is assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np

from hasten.config.load import load_run
from hasten.observe.rundir import CHECKPOINTS, RUN_YAML
from hasten.observe.values import mapping
from hasten.report.model import Table
from hasten.report.read import read_run
from hasten.report.words import share, short_duration
from hasten.scaling.logs import SINGLE, Mode, entry_from_files, is_run, read_logs

COMPUTE, SLOWEST, COMMUNICATION = "compute", "the slowest worker", "communication"
VALIDATION, FIXED = "validation", "fixed costs"
Model = Callable[[int], dict[str, float]]
"""Seconds of an epoch by cause, on a number of workers."""
USUAL_LINK = 22.5
"""GB/s each way in large all-reduces, the "bus bandwidth" of nccl-tests: here of InfiniBand HDR (200 Gbit/s)."""
LATENCY_S = 15e-6
"""Assumed seconds of a message, as NCCL's tuning.cc has it for InfiniBand."""
_DRAWS = 300
_RANGE = (0.1, 0.9)
"""The central 80 %."""
_BETWEEN_RUNS = 0.03
"""Relative standard deviation of a training's speed between allocations of nodes, which no log records."""
_BACKWARD_SHARE = 2 / 3
"""Assumed share of a step in which gradients become ready, at an even rate."""
_FIXED_SHARE = 0.05
"""Assumed share of a step that doesn't shrink with the batch: launches, the optimizer, small layers."""
_FREE = 0.02
"""A loss below this share is ignored."""
_FEWEST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The model of a folder, and draws of models that agree as well with what was measured."""

    mode: Mode
    model: Model
    draws: Sequence[Model]
    notes: tuple[str, ...]
    """Assumptions and measurements, one sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One number of workers; the ranges are (low, high) of the central 80 % of the draws, and hold the prediction."""

    workers: int
    epoch_s: float
    epoch_range: tuple[float, float]
    efficiency: float
    """Speed-up over one worker, over the workers: 1 is ideal."""
    efficiency_range: tuple[float, float]
    losses: dict[str, float]
    """Share of the workers' time that each cause takes beyond an ideal speed-up; with the efficiency they sum to 1."""

    @property
    def limit(self) -> str:
        """The cause that costs most; `compute` if none costs much."""
        cause = max(self.losses, key=lambda name: self.losses[name])
        return cause if self.losses[cause] >= _FREE else COMPUTE


def predict(source: Source, workers: int) -> Prediction:
    """The epoch and the efficiency on `workers`, which is 1 or more."""
    alone, parts = source.model(1), source.model(workers)
    epochs = [sum(model(workers).values()) for model in (source.model, *source.draws)]
    first = [sum(model(1).values()) for model in (source.model, *source.draws)]
    efficiencies = [one / (workers * epoch) for one, epoch in zip(first, epochs, strict=True)]
    return Prediction(
        workers=workers,
        epoch_s=epochs[0],
        epoch_range=_range(epochs),
        efficiency=efficiencies[0],
        efficiency_range=_range(efficiencies),
        losses={name: (parts[name] - alone[name] / workers) / epochs[0] for name in parts if name != COMPUTE},
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Central range of the draws, which follow the prediction in `values`."""
    best, *drawn = values
    low, high = np.quantile(drawn, _RANGE)
    return min(best, float(low)), max(best, float(high))


def table_of(predictions: Sequence[Prediction]) -> Table:
    """A row for each count of workers."""
    rows = [
        (
            str(one.workers),
            share(one.efficiency),
            " to ".join(share(limit) for limit in one.efficiency_range),
            short_duration(one.epoch_s),
            one.limit,
        )
        for one in predictions
    ]
    return Table(("Workers", "Efficiency", "Range", "Epoch", "Limited by"), tuple(rows), numeric=(0, 1, 2, 3))


def source_of(folder: Path, *, link: float = USUAL_LINK, mode: Mode = "weak") -> Source:
    """The model of `folder`: a scaling study's logs, or the run of one process.

    link: GB/s of the slowest link between a run's workers. mode: of a run, and of logs that don't state it. Raises
    ValueError for what allows no prediction.
    """
    if folder.is_dir() and is_run(folder):
        return _from_run(folder, link, mode)
    return _from_logs(folder, mode)


# From logs: the seconds of an epoch on several numbers of workers.


def fit_epochs(epochs: Mapping[int, float], mode: Mode, name: str = "the logs") -> Source:
    """The model of the seconds of an epoch by number of workers.

    An epoch on W workers takes compute / W, what of the all-reduces isn't hidden, and a rest that doesn't shrink: three
    shares, none below 0, fitted by least squares of relative residuals. Of the all-reduces only what the rest couldn't
    stand for as well is fitted: a ring's bytes where an epoch has 1/W of the steps (weak), a tree's messages where it
    keeps them (strong). The draws repeat the fit on epochs around the fitted ones.
    Raises ValueError for fewer than 3 numbers of workers, and for epochs that do not get shorter.
    """
    from scipy.optimize import nnls

    counts = sorted(epochs)
    if len(counts) < _FEWEST:
        raise ValueError(f"{name}: epochs on {counts} workers are too few to fit; 3 counts are needed, such as 1, 2, 4")
    columns = np.array([_columns(count, mode) for count in counts])

    def fit(seconds: np.ndarray) -> np.ndarray:
        weighted = columns / seconds[:, None]
        # Columns of one size, or the threshold for zero would depend on their units.
        sizes = np.linalg.norm(weighted, axis=0)
        shares: np.ndarray = nnls(weighted / sizes, np.ones_like(seconds))[0]
        return np.where(shares > 1e-12 * shares.max(), shares, 0.0) / sizes

    seconds = np.array([epochs[count] for count in counts])
    shares = fit(seconds)
    if shares[0] <= 0:
        raise ValueError(f"{name}: epochs don't get shorter with more workers, so nothing can be predicted from them")
    fitted = columns @ shares
    freedom = max(1, len(counts) - int((shares > 0).sum()))
    noise = max(math.sqrt(float(np.sum((fitted / seconds - 1) ** 2)) / freedom), _BETWEEN_RUNS)
    random = np.random.default_rng(0)
    draws = [fit(fitted * np.exp(noise * random.standard_normal(len(counts)))) for _ in range(_DRAWS)]
    note = (
        f"Fitted to {name} of {', '.join(map(str, counts))} workers ({mode} scaling): compute {shares[0]:.4g} s, "
        f"communication {shares[1]:.4g} s, fixed {shares[2]:.4g} s; {100 * noise:.1f} % from run to run."
    )
    models = [_epoch_model(draw, mode) for draw in draws if draw[0] > 0]
    return Source(mode=mode, model=_epoch_model(shares, mode), draws=models, notes=(note,))


def _columns(workers: int, mode: Mode) -> tuple[float, float, float]:
    """Factors of compute, communication and the rest."""
    sent = 2 * (workers - 1) / workers**2 if mode == "weak" else 2.0 * math.ceil(math.log2(workers))
    return 1 / workers, sent, 1.0


def _epoch_model(shares: np.ndarray, mode: Mode) -> Model:
    def model(workers: int) -> dict[str, float]:
        parts = zip((COMPUTE, COMMUNICATION, FIXED), _columns(workers, mode), shares, strict=True)
        return {name: factor * float(seconds) for name, factor, seconds in parts}

    return model


def _from_logs(folder: Path, mode: Mode) -> Source:
    """The model of the strategy with the shortest epoch."""
    logs = [(log, seconds) for log in read_logs(folder).logs if (seconds := log.epoch_s(None)) is not None]
    fastest = min(logs, key=lambda pair: pair[1], default=None)
    strategy = SINGLE if fastest is None else fastest[0].strategy
    by_world: dict[int, list[float]] = {}
    for log, seconds in logs:
        if log.strategy in (strategy, SINGLE):
            by_world.setdefault(log.world, []).append(seconds)
    modes = {log.mode for log, _ in logs if log.mode and log.strategy == strategy}
    if len(modes) > 1:
        raise ValueError(f"{folder}: holds logs of weak and of strong scaling; give it the logs of one")
    epochs = {world: statistics.median(by_world[world]) for world in sorted(by_world)}
    return fit_epochs(epochs, "strong" if modes == {"strong"} else mode, f"{folder} ({strategy})")


# From a run of one process: its step, and an assumed network.


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A training as one worker runs it, on a network."""

    mode: Mode
    compute_s: float
    """Seconds of a step on one worker's batch, waits for data included."""
    spread: float = 0.0
    """Standard deviation of a step over its mean: all wait for the slowest of W draws."""
    gradient_bytes: float
    bucket_bytes: float = 25 * 2**20
    bytes_per_s: float
    latency_s: float = LATENCY_S
    steps: float = 1.0
    """Steps of an epoch on one worker."""
    validation_s: float = 0.0
    """Seconds of an epoch's validation on one worker; the cases are dealt out."""
    checkpoint_s: float = 0.0
    """Seconds of an epoch in which all wait for checkpoints."""
    fixed_share: float = _FIXED_SHARE

    def __call__(self, workers: int) -> dict[str, float]:
        share, count = (1.0, self.steps / workers) if self.mode == "weak" else (1 / workers, self.steps)
        ideal = self.compute_s * share
        fixed = self.fixed_share * self.compute_s * (1 - share)
        return {
            COMPUTE: count * ideal,
            SLOWEST: count * self.spread * expected_maximum(workers) * (ideal + fixed),
            COMMUNICATION: count * self.exposed_s(workers, _BACKWARD_SHARE * (ideal + fixed)),
            VALIDATION: self.validation_s / workers,
            FIXED: count * fixed + self.checkpoint_s,
        }

    def exposed_s(self, workers: int, backward_s: float) -> float:
        """Seconds of a step's all-reduces that remain after the backward pass.

        Buckets are sent one after another, each when it is full. The last one is full at the end of the backward pass,
        so it is never hidden: pytorch.org/docs/stable/notes/ddp.html. Of equal buckets, filled at an even rate, either
        all wait for the one before, or none does. Each goes around a ring (2 (W - 1) messages of 1/W of the bytes) or
        by a tree (fewer, larger), whichever is faster.
        """
        count = max(1, math.ceil(self.gradient_bytes / self.bucket_bytes))
        hops, levels = 2 * (workers - 1), 2 * math.ceil(math.log2(workers))
        transfer_s = self.gradient_bytes / count / self.bytes_per_s
        ring = hops * self.latency_s + hops / workers * transfer_s
        each = min(ring, levels * self.latency_s + 2 * transfer_s)
        return max(each, backward_s / count + count * each - backward_s)


def expected_maximum(workers: int) -> float:
    """Mean of the largest of `workers` standard normal draws (G. Blom 1958): 0 for one, 1.4 for 8, 3.2 for 1024."""
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def _from_run(folder: Path, link: float, mode: Mode) -> Source:
    run, config = read_run(folder), load_run(folder / RUN_YAML)
    batch, cases = config.sample.batch_size, run.cases.get("train")
    paces = [
        (later.step - earlier.step, batch / later.samples_per_s)
        for earlier, later in pairwise(run.train)
        if batch and later.step > earlier.step and later.samples_per_s
    ]
    if entry_from_files(folder).world > 1 or not cases or not batch or len(paces) < _FEWEST:
        raise ValueError(
            f"{folder}: must be a run of one process that has ended, with its cases, its batch and the pace of "
            f"{_FEWEST} stretches of steps after the first line; or a folder with runs of several counts"
        )
    compute = statistics.median(seconds for _, seconds in paces)
    # Differences of neighbours exclude a common drift; a mean over n steps varies less by the root of n than one does.
    squares = [(b - a) ** 2 / (1 / n + 1 / m) for (n, a), (m, b) in pairwise(paces)]
    steps = cases / batch
    step = Step(
        mode=mode,
        compute_s=compute,
        spread=math.sqrt(statistics.fmean(squares)) / compute,
        gradient_bytes=_num_weights(folder) * (4 if config.distribute.gradients == "fp32" else 2),
        bucket_bytes=config.distribute.bucket_mb * 2**20,
        bytes_per_s=1e9 * link,
        steps=steps,
        validation_s=run.seconds.get("validate", 0.0) * steps / run.steps if run.steps else 0.0,
        checkpoint_s=run.seconds.get("checkpoint", 0.0) * steps / run.steps if run.steps else 0.0,
    )
    # Relative errors of what is uncertain: the step, its spread, and the network's latency and rate.
    errors = {"compute_s": 0.02, "spread": 1 / math.sqrt(2 * len(paces)), "latency_s": 0.4, "bytes_per_s": 0.2}
    factors = np.exp(np.random.default_rng(0).standard_normal((_DRAWS, len(errors))) * list(errors.values()))
    draws = [
        replace(step, **{name: getattr(step, name) * float(by) for name, by in zip(errors, row, strict=True)})
        for row in factors
    ]
    notes = (
        f"Measured on one process: a step of {short_duration(compute)}, varying by {100 * step.spread:.1f} %, "
        f"{step.gradient_bytes / 2**20:.4g} MiB of gradients.",
        f"Assumed: a network of {1e6 * LATENCY_S:g} us a message and {link:g} GB/s; --link names another.",
    )
    return Source(mode=mode, model=step, draws=draws, notes=notes)


def _num_weights(folder: Path) -> int:
    """Floating-point numbers of the network, as the run's checkpoint holds them."""
    from hasten.checkpoint.file import read_checkpoint

    for name, field in (("last.pt", "network"), ("best.pt", "weights")):
        path = folder / CHECKPOINTS / name
        if path.is_file():
            weights = mapping(read_checkpoint(path).get(field))
            return sum(tensor.numel() for tensor in weights.values() if tensor.is_floating_point())
    raise ValueError(f"{folder}: has no checkpoint with the size of the gradients; train it with checkpoints")
