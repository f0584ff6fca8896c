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
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np

from hasten.config.load import load_run
from hasten.observe.rundir import CHECKPOINTS, RUN_YAML, write_json, writing_to
from hasten.observe.values import mapping, number_in
from hasten.report.model import Table
from hasten.report.read import read_run
from hasten.report.words import NBSP, share, short_duration
from hasten.scaling.logs import SINGLE, Log, Mode, entry_from_files, is_run, read_logs

COMPUTE, SLOWEST, COMMUNICATION = "compute", "the slowest worker", "communication"
VALIDATION, FIXED = "validation", "fixed costs"
Model = Callable[[int], dict[str, float]]
"""Seconds of an epoch by cause, on a number of workers."""

USUAL_LINK = "ib200"
LINKS: Mapping[str, tuple[float, float]] = {
    "nvlink4": (3.4, 360),
    "nvlink3": (3.4, 235),
    "pcie4": (5.7, 20),
    "ib400": (14, 45),
    "ib200": (14, 22.5),
    "eth100": (30, 9),
    "eth10": (30, 1.12),
}
"""Assumed microseconds of a message, from NCCL's tuning.cc, and GB/s each way in large all-reduces: the "bus bandwidth"
of nccl-tests, about 90 % of a network's line rate and 80 % of NVLink's."""
_OTHER_LATENCY_US = 20.0

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
_FEWEST_PACES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The model of a folder, and draws of models that agree as well with what was measured."""

    name: str
    mode: Mode
    model: Model
    draws: Sequence[Model]
    notes: tuple[str, ...]
    """Assumptions and measurements, one sentence each."""
    most: int | None = None
    """Workers that the batch, or the steps of an epoch, can be dealt to; None where nobody knows."""
    measured: tuple[tuple[int, float], ...] = ()
    """(workers, seconds of an epoch) of the logs."""
    strategy: str = ""


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

    def efficiency(model: Model) -> float:
        return sum(model(1).values()) / (workers * sum(model(workers).values()))

    alone, parts = source.model(1), source.model(workers)
    epoch_s = sum(parts.values())
    return Prediction(
        workers=workers,
        epoch_s=epoch_s,
        epoch_range=_range(epoch_s, [sum(model(workers).values()) for model in source.draws]),
        efficiency=efficiency(source.model),
        efficiency_range=_range(efficiency(source.model), [efficiency(model) for model in source.draws]),
        losses={name: parts[name] / epoch_s - alone[name] / (workers * epoch_s) for name in parts if name != COMPUTE},
    )


def _range(best: float, samples: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(samples, _RANGE)
    return min(best, float(low)), max(best, float(high))


PREDICTION_JSON = "prediction.json"


def table_of(predictions: Sequence[Prediction]) -> Table:
    """A row for each count of workers."""
    rows = [
        (str(one.workers), share(one.efficiency), _between(one), short_duration(one.epoch_s), one.limit)
        for one in predictions
    ]
    return Table(("Workers", "Efficiency", "Range", "Epoch", "Limited by"), tuple(rows), numeric=(0, 1, 2, 3))


def verdict(predictions: Sequence[Prediction], source: Source) -> str:
    """One sentence of the largest count."""
    last = predictions[-1]
    why = "nothing to speak of is lost" if last.limit == COMPUTE else f"most is lost to {last.limit}"
    return (
        f"On {last.workers:,} workers ({source.mode} scaling) {100 * last.efficiency:.0f}{NBSP}% of an ideal speed-up "
        f"is predicted, {_between(last)} within the error bars; {why}."
    )


def _between(one: Prediction) -> str:
    low, high = one.efficiency_range
    return f"{100 * low:.0f} to {100 * high:.0f} %".replace(" ", NBSP)


def write(out: Path, predictions: Sequence[Prediction], source: Source) -> Path:
    """Write prediction.json into the folder `out` and return it. Raises ValueError if it can't be written."""
    facts = {name: getattr(source, name) for name in ("name", "strategy", "mode", "notes")}
    facts["measured_epochs"] = [{"workers": workers, "epoch_s": seconds} for workers, seconds in source.measured]
    facts["predictions"] = [{**asdict(one), "limit": one.limit} for one in predictions]
    with writing_to(out):
        write_json(out / PREDICTION_JSON, facts)
    return out / PREDICTION_JSON


def source_of(
    folder: Path, *, link: str | None = None, mode: Mode | None = None, strategy: str | None = None
) -> Source:
    """The model of `folder`: a scaling study's logs, or the run of one process.

    link: of a run's network, a name or GB/s; None is `USUAL_LINK`. mode: None is that of the logs, else weak. strategy:
    of logs of several; None is the fastest. Raises ValueError for what allows no prediction.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name one with a scaling study's logs, or the folder of a run")
    if not is_run(folder):
        if link is not None:
            raise ValueError(
                f"--link {link}: for the folder of a run; {folder} holds logs, which contain their network's cost"
            )
        return _from_logs(folder, read_logs(folder).logs, mode, strategy)
    if strategy is not None:
        raise ValueError(f"--strategy {strategy}: for logs of several; {folder} is one run, so leave it out")
    return _from_run(folder, link or USUAL_LINK, mode or "weak")


# From logs: the seconds of an epoch on several numbers of workers.


def fit_epochs(
    epochs: Mapping[int, float], mode: Mode, source: str = "the logs"
) -> tuple[Model, list[Model], tuple[str, ...]]:
    """The model, its draws and notes on both, from the seconds of an epoch by number of workers.

    An epoch on W workers takes compute / W, what of the all-reduces isn't hidden, and a rest that doesn't shrink: three
    shares, none below 0, fitted by least squares of relative residuals. Of the all-reduces only what the rest couldn't
    stand for as well is fitted: a ring's bytes where an epoch has 1/W of the steps (weak), a tree's messages where it
    keeps them (strong). The draws repeat the fit on epochs around the fitted ones.
    Raises ValueError for fewer than 3 numbers of workers, and for epochs that do not get shorter.
    """
    from scipy.optimize import nnls

    counts = sorted(epochs)
    if len(counts) < 3:
        given = ", ".join(map(str, counts)) or "none"
        raise ValueError(
            f"{source}: epochs on {given} workers are too few to fit; 3 counts are needed, such as 1, 2, 4"
        )
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
        raise ValueError(f"{source}: epochs don't get shorter with more workers, so nothing can be predicted from them")
    fitted = columns @ shares
    freedom = max(1, len(counts) - int((shares > 0).sum()))
    noise = max(math.sqrt(float(np.sum((fitted / seconds - 1) ** 2)) / freedom), _BETWEEN_RUNS)
    random = np.random.default_rng(0)
    draws = [fit(fitted * np.exp(noise * random.standard_normal(len(counts)))) for _ in range(_DRAWS)]
    sent = "bytes" if mode == "weak" else "messages"
    notes = (
        f"Fitted to an epoch's seconds on {', '.join(map(str, counts))} workers ({mode}): compute {shares[0]:.4g} s, "
        f"{sent} {shares[1]:.4g} s, fixed {shares[2]:.4g} s.",
        f"Error bars: {100 * noise:.1f} % from run to run, the fit's residuals and {100 * _BETWEEN_RUNS:g} % at least.",
    )
    return _epoch_model(shares, mode), [_epoch_model(draw, mode) for draw in draws if draw[0] > 0], notes


def _columns(workers: int, mode: Mode) -> tuple[float, float, float]:
    """Factors of compute, communication and the rest."""
    sent = 2 * (workers - 1) / workers**2 if mode == "weak" else 2.0 * math.ceil(math.log2(workers))
    return 1 / workers, sent, 1.0


def _epoch_model(shares: np.ndarray, mode: Mode) -> Model:
    def model(workers: int) -> dict[str, float]:
        parts = zip((COMPUTE, COMMUNICATION, FIXED), _columns(workers, mode), shares, strict=True)
        return {name: factor * float(seconds) for name, factor, seconds in parts}

    return model


def _from_logs(folder: Path, logs: Sequence[Log], mode: Mode | None, strategy: str | None) -> Source:
    seconds: dict[str, dict[int, list[float]]] = {}
    for log in logs:
        if (epoch_s := log.epoch_s(None)) is not None:
            seconds.setdefault(log.strategy, {}).setdefault(log.world, []).append(epoch_s)
    alone = seconds.pop(SINGLE, {})
    names = sorted(seconds)
    if strategy is not None and strategy not in names:
        raise ValueError(f"--strategy {strategy}: {folder} holds no log of it; there is {', '.join(names) or 'none'}")
    chosen = strategy or min(names, key=lambda name: min(map(min, seconds[name].values())), default=SINGLE)
    modes = sorted({log.mode for log in logs if log.mode and log.strategy in (chosen, SINGLE)})
    if len(modes) > 1 or (mode is not None and modes not in ([], [mode])):
        raise ValueError(
            f"{folder}: holds logs of {' and '.join(modes)} scaling; give it the logs of one, and no other --mode"
        )
    scaling = mode or ("strong" if modes == ["strong"] else "weak")
    by_world = alone | seconds.get(chosen, {})
    epochs = {world: statistics.median(by_world[world]) for world in sorted(by_world)}
    model, draws, notes = fit_epochs(epochs, scaling, f"{folder} ({chosen})")
    others = (
        f"; {', '.join(name for name in names if name != chosen)} also there, by --strategy" if len(names) > 1 else ""
    )
    return Source(
        name=folder.name or str(folder),
        mode=scaling,
        model=model,
        draws=draws,
        notes=(
            f"Strategy: {chosen}, {'stated as' if modes else 'taken as'} {scaling} scaling{others}.",
            *notes,
            f"Measured on up to {max(epochs)} workers: beyond that, the network is assumed to stay as measured.",
        ),
        measured=tuple(epochs.items()),
        strategy=chosen,
    )


# From a run of one process: its step, and an assumed network.


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A training as one worker runs it, on a network."""

    mode: Mode
    compute_s: float
    """Seconds of a step on one worker's batch, waits for data included."""
    spread: float
    """Standard deviation of a step over its mean: all wait for the slowest of W draws."""
    gradient_bytes: float
    bucket_bytes: float
    overlap: bool
    latency_s: float
    bytes_per_s: float
    steps: float
    """Steps of an epoch on one worker."""
    validation_s: float
    """Seconds of an epoch's validation on one worker; the cases are dealt out."""
    checkpoint_s: float
    """Seconds of an epoch in which all wait for checkpoints."""
    fixed_share: float = _FIXED_SHARE
    backward_share: float = _BACKWARD_SHARE

    def __call__(self, workers: int) -> dict[str, float]:
        share, count = (1.0, self.steps / workers) if self.mode == "weak" else (1 / workers, self.steps)
        ideal = self.compute_s * share
        fixed = self.fixed_share * self.compute_s * (1 - share)
        return {
            COMPUTE: count * ideal,
            SLOWEST: count * self.spread * expected_maximum(workers) * (ideal + fixed),
            COMMUNICATION: count * self.exposed_s(workers, self.backward_share * (ideal + fixed)),
            VALIDATION: self.validation_s / workers,
            FIXED: count * fixed + self.checkpoint_s,
        }

    def exposed_s(self, workers: int, backward_s: float) -> float:
        """Seconds of a step's all-reduces that remain after the backward pass.

        Buckets are sent one after another, each when it is full. The last one is full at the end of the backward pass,
        so it is never hidden: pytorch.org/docs/stable/notes/ddp.html. Of equal buckets, filled at an even rate, either
        all wait for the one before, or none does.
        """
        count = max(1, math.ceil(self.gradient_bytes / self.bucket_bytes))
        each = self.all_reduce_s(self.gradient_bytes / count, workers)
        return max(each, backward_s / count + count * each - backward_s) if self.overlap else count * each

    def all_reduce_s(self, num_bytes: float, workers: int) -> float:
        """Seconds around a ring (2 (W - 1) messages of 1/W of the bytes) or by a tree (fewer, larger): the less."""
        hops, levels = 2 * (workers - 1), 2 * math.ceil(math.log2(workers))
        transfer_s = num_bytes / self.bytes_per_s
        ring = hops * self.latency_s + hops / workers * transfer_s
        return min(ring, levels * self.latency_s + 2 * transfer_s)


def expected_maximum(workers: int) -> float:
    """Mean of the largest of `workers` standard normal draws (G. Blom 1958): 0 for one, 1.4 for 8, 3.2 for 1024."""
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def link_of(text: str) -> tuple[float, float]:
    """(latency in us, GB/s) of the link of this name, or of this rate. Raises ValueError for neither."""
    if text in LINKS:
        return LINKS[text]
    rate = number_in(text)
    if 0 < rate < math.inf:
        return _OTHER_LATENCY_US, rate
    raise ValueError(f"--link {text}: no such link; give one of {', '.join(LINKS)}, or a rate in GB/s")


def _from_run(folder: Path, link: str, mode: Mode) -> Source:
    latency_us, rate = link_of(link)
    run, config = read_run(folder), load_run(folder / RUN_YAML)
    if entry_from_files(folder).world > 1:
        raise ValueError(
            f"{folder}: was trained by several processes, whose steps hold their communication; give the run of one "
            "process, or a folder with runs of several counts"
        )
    batch, cases, distribute = config.sample.batch_size, run.cases.get("train"), config.distribute
    if batch is None or not cases or not run.steps:
        raise ValueError(f"{folder}: doesn't state its batch, cases and steps; give the folder of a run that has ended")
    paces = [
        (later.step - earlier.step, batch / later.samples_per_s)
        for earlier, later in pairwise(run.train)
        if later.step > earlier.step and later.samples_per_s
    ]
    if len(paces) < _FEWEST_PACES:
        raise ValueError(
            f"{folder}: its metrics.jsonl has the pace of {len(paces)} stretches of steps after the first line, and "
            f"{_FEWEST_PACES} are needed; train it for longer"
        )
    compute = statistics.median(seconds for _, seconds in paces)
    # Differences of neighbours exclude a common drift; a mean over n steps varies less by the root of n than one does.
    squares = [(b - a) ** 2 / (1 / n + 1 / m) for (n, a), (m, b) in pairwise(paces)]
    steps = cases / batch
    step = Step(
        mode=mode,
        compute_s=compute,
        spread=math.sqrt(statistics.fmean(squares)) / compute,
        gradient_bytes=_num_weights(folder) * (4 if distribute.gradients == "fp32" else 2),
        bucket_bytes=distribute.bucket_mb * 2**20,
        overlap=True,
        latency_s=1e-6 * latency_us,
        bytes_per_s=1e9 * rate,
        steps=steps,
        validation_s=run.seconds.get("validate", 0.0) * steps / run.steps,
        checkpoint_s=run.seconds.get("checkpoint", 0.0) * steps / run.steps,
    )
    fixed = f"; {100 * _FIXED_SHARE:g} % of it don't shrink with the batch" if mode == "strong" else ""
    return Source(
        name=run.name or folder.name,
        mode=mode,
        model=step,
        draws=_drawn(step, len(paces)),
        notes=(
            f"Measured on one process: a step of {short_duration(compute)}, varying by {100 * step.spread:.1f} %, "
            f"{step.gradient_bytes / 2**20:.4g} MiB of gradients.",
            f"Assumed: two thirds of a step is the backward pass{fixed}.",
            f"Assumed: a network ({link}) of {latency_us:g} us a message and {rate:g} GB/s; --link names another.",
        ),
        most=batch if mode == "strong" else max(1, int(steps)),
    )


def _drawn(step: Step, paces: int) -> list[Model]:
    """Steps with what is uncertain of them varied, each by a factor of mean 1 that is never below 0."""
    errors = {
        "compute_s": max(step.spread / math.sqrt(paces), 0.02),
        "spread": 1 / math.sqrt(2 * paces),
        "latency_s": 0.4,
        "bytes_per_s": 0.2,
        "fixed_share": 0.8,
        "backward_share": 0.1,
    }
    sigmas = np.sqrt(np.log1p(np.square(list(errors.values()))))
    factors = np.exp(sigmas * np.random.default_rng(0).standard_normal((_DRAWS, len(errors))) - sigmas**2 / 2)
    return [
        replace(step, **{name: getattr(step, name) * float(by) for name, by in zip(errors, row, strict=True)})
        for row in factors
    ]


def _num_weights(folder: Path) -> int:
    """Floating-point numbers of the network, as the run's checkpoint holds them."""
    from hasten.checkpoint.file import read_checkpoint

    for name, field in (("last.pt", "network"), ("best.pt", "weights")):
        path = folder / CHECKPOINTS / name
        if path.is_file():
            weights = mapping(read_checkpoint(path).get(field))
            return sum(tensor.numel() for tensor in weights.values() if tensor.is_floating_point())
    raise ValueError(f"{folder}: has no checkpoint with the size of the gradients; train it with checkpoints")
