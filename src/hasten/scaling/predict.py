"""Predicts how a training scales to more workers from logs of a few counts of them, in closed form, with a range.

An epoch on W workers takes compute / W, what of the gradients' all-reduces the backward pass does not hide, and a rest
that doesn't shrink. All-reduces: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hasten.report.model import Table
from hasten.report.words import share, short_duration
from hasten.scaling.logs import SINGLE, Mode, read_logs

COMPUTE, COMMUNICATION, FIXED = "compute", "communication", "fixed costs"
_DRAWS = 300
_RANGE = (0.1, 0.9)
"""The central 80 %."""
_BETWEEN_RUNS = 0.03
"""Relative standard deviation of a training's speed between allocations of nodes, which no log records."""
_FREE = 0.02
"""A loss below this share is ignored."""
_FEWEST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Seconds of compute, communication and the rest, to be multiplied by their factors on a number of workers."""

    mode: Mode
    seconds: np.ndarray
    """(3,)."""
    draws: np.ndarray
    """(draws, 3): others that agree as well with what was measured."""
    note: str


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


def predict(fit: Fit, workers: int) -> Prediction:
    """The epoch and the efficiency on `workers`, which is 1 or more."""
    one, many = _factors(1, fit.mode), _factors(workers, fit.mode)
    seconds = np.vstack([fit.seconds, fit.draws])
    epochs = seconds @ many
    efficiencies = seconds @ one / (workers * epochs)
    lost = (many - one / workers) * fit.seconds / epochs[0]
    return Prediction(
        workers=workers,
        epoch_s=float(epochs[0]),
        epoch_range=_range(epochs),
        efficiency=float(efficiencies[0]),
        efficiency_range=_range(efficiencies),
        losses={COMMUNICATION: float(lost[1]), FIXED: float(lost[2])},
    )


def _range(values: np.ndarray) -> tuple[float, float]:
    """Central range of the draws, which follow the prediction in `values`."""
    low, high = np.quantile(values[1:], _RANGE)
    return min(float(values[0]), float(low)), max(float(values[0]), float(high))


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


def fit_logs(folder: Path, mode: Mode) -> Fit:
    """The model of the strategy with the shortest epoch in a scaling study's logs. mode: of logs that don't state it.

    Raises ValueError for what `read_logs` refuses, and what allows no prediction.
    """
    logs = [(log, seconds) for log in read_logs(folder)[0] if (seconds := log.epoch_s(None)) is not None]
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


def fit_epochs(epochs: Mapping[int, float], mode: Mode, name: str = "the logs") -> Fit:
    """The model of the seconds of an epoch by number of workers.

    Three shares, none below 0, are fitted by least squares of relative residuals. Of the all-reduces only what the rest
    couldn't stand for as well is fitted: a ring's bytes where an epoch has 1/W of the steps (weak), a tree's messages
    where it keeps them (strong). The draws repeat the fit on epochs around the fitted ones.
    Raises ValueError for fewer than 3 numbers of workers, and for epochs that do not get shorter.
    """
    from scipy.optimize import nnls

    counts = sorted(epochs)
    if len(counts) < _FEWEST:
        raise ValueError(f"{name}: epochs on {counts} workers are too few to fit; 3 counts are needed, such as 1, 2, 4")
    columns = np.array([_factors(count, mode) for count in counts])

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
    draws = np.array([fit(fitted * np.exp(noise * random.standard_normal(len(counts)))) for _ in range(_DRAWS)])
    note = (
        f"Fitted to {name} of {', '.join(map(str, counts))} workers ({mode} scaling): compute {shares[0]:.4g} s, "
        f"communication {shares[1]:.4g} s, fixed {shares[2]:.4g} s; {100 * noise:.1f} % from run to run."
    )
    return Fit(mode=mode, seconds=shares, draws=draws[draws[:, 0] > 0], note=note)


def _factors(workers: int, mode: Mode) -> np.ndarray:
    """(3,): of compute, communication and the rest."""
    sent = 2 * (workers - 1) / workers**2 if mode == "weak" else 2.0 * math.ceil(math.log2(workers))
    return np.array([1 / workers, sent, 1.0])
