"""Fits the parameters of the model to measurements, with error bars by resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hasten.study.scale.predict.links import Link, Network
from hasten.study.scale.predict.model import Mode, Prediction, Training, predict

DRAWS = 300
_SEED = 0
_RANGE = (0.1, 0.9)
"""The central 80 %."""
_BETWEEN_RUNS = 0.03
"""Relative standard deviation of a training's speed between allocations of nodes, which no log records."""
_LEAST = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingModel:
    """The parameters of `predict`."""

    training: Training
    network: Network

    def at(self, workers: int, mode: Mode) -> Prediction:
        return predict(self.training, workers, self.network, mode)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The best parameters, and draws of parameters that are consistent with the measurements."""

    best: ScalingModel
    draws: tuple[ScalingModel, ...]
    notes: tuple[str, ...] = ()
    """Assumptions and measurements, one sentence each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """One count of workers; the ranges are (low, high) of the central 80 % of the draws."""

    point: Prediction
    efficiency: tuple[float, float]
    step_s: tuple[float, float]
    epoch_s: tuple[float, float]


def predictions(fitted: Fitted, counts: Sequence[int], mode: Mode) -> list[Predicted]:
    """The model's predictions for `counts` workers with error bars, which always contain the prediction."""
    points = []
    for workers in counts:
        best = fitted.best.at(workers, mode)
        sampled = [model.at(workers, mode) for model in fitted.draws]
        points.append(
            Predicted(
                point=best,
                efficiency=_range(best.efficiency, [point.efficiency for point in sampled]),
                step_s=_range(best.step_s, [point.step_s for point in sampled]),
                epoch_s=_range(best.epoch_s, [point.epoch_s for point in sampled]),
            )
        )
    return points


def _range(best: float, samples: Sequence[float]) -> tuple[float, float]:
    if not samples:
        return best, best
    low, high = np.quantile(samples, _RANGE)
    return min(best, float(low)), max(best, float(high))


def nonnegative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(n,) x >= 0 for which `columns` (m, n) @ x is nearest to `target` (m,)."""
    from scipy.optimize import nnls

    # Normalize the columns, or the threshold for zero would depend on their units.
    sizes = np.linalg.norm(columns, axis=0)
    sizes[sizes == 0] = 1.0
    solution: np.ndarray = nnls(columns / sizes, target)[0]
    solution[solution <= 1e-12 * solution.max()] = 0.0
    return solution / sizes


def alpha_beta(points: Sequence[tuple[float, float]], workers: int, *, name: str, note: str = "") -> Link:
    """The link that explains measured all-reduces: (bytes, seconds) each, of `workers` >= 2, by the ring's formula.

    Residuals count by their share of the time, and outliers little (Huber's weights). The errors are those of the
    fit, at least 2 %. Raises ValueError for fewer than 3 sizes.
    """
    if len({num_bytes for num_bytes, _ in points}) < 3:
        raise ValueError(f"{name}: {len(points)} measured all-reduces are too few for a latency and a rate; measure 3")
    sizes = np.array([num_bytes for num_bytes, _ in points], dtype=float)
    seconds = np.array([value for _, value in points], dtype=float)
    hops = 2 * (workers - 1)
    columns = np.stack([np.full_like(sizes, hops), hops / workers * sizes], axis=1)
    weights = 1 / seconds
    for _ in range(30):
        solution = nonnegative(columns * weights[:, None], seconds * weights)
        relative = np.abs(columns @ solution / seconds - 1)
        typical = 1.4826 * float(np.median(relative)) + 1e-9
        weights = np.sqrt(np.minimum(1.0, 1.5 * typical / np.maximum(relative, _LEAST))) / seconds
    latency, inverse = (float(value) for value in solution)
    errors = _errors(columns * weights[:, None], seconds * weights, solution)
    return Link(
        name=name,
        latency_s=latency,
        bytes_per_s=1 / max(inverse, 1e-15),
        latency_error=errors[0],
        bandwidth_error=errors[1],
        note=note,
    )


def _errors(columns: np.ndarray, target: np.ndarray, solution: np.ndarray) -> list[float]:
    """Relative standard errors of a least squares fit."""
    residuals = target - columns @ solution
    freedom = max(1, len(target) - len(solution))
    covariance = np.linalg.pinv(columns.T @ columns) * float(residuals @ residuals) / freedom
    return [
        min(1.0, max(0.02, math.sqrt(max(0.0, variance)) / value)) if value > 0 else 1.0
        for variance, value in zip(np.diag(covariance), solution, strict=True)
    ]


def fit_epochs(
    epochs: Mapping[int, float], *, mode: Mode, errors: Mapping[int, float] | None = None, source: str = "the logs"
) -> Fitted:
    """The model from the seconds of an epoch on several numbers of workers alone.

    errors: relative standard error of each; by default none but what runs differ by. An epoch on W workers takes
    compute / W, what of a ring's all-reduces isn't hidden, and a rest that doesn't shrink: three shares, none below 0,
    fitted by least squares of relative residuals. The error bars repeat the fit on epochs drawn around the fitted ones.
    Of the ring only what the rest couldn't stand for as well is fitted: bytes where an epoch has 1/W of the steps
    (weak), messages where it keeps them (strong).
    source: names the logs in errors. Raises ValueError for fewer than 3 counts.
    """
    counts = sorted(epochs)
    if len(counts) < 3:
        listed = ", ".join(map(str, counts)) or "none"
        raise ValueError(
            f"{source}: epochs on {listed} workers are too few to fit; 3 counts are needed, such as 1, 2, 4"
        )
    seconds = np.array([epochs[count] for count in counts])
    columns = _epoch_columns(np.array(counts, dtype=float), mode)
    sent = "bytes" if mode == "weak" else "messages"

    def fit(measured: np.ndarray) -> np.ndarray:
        return nonnegative(columns / measured[:, None], np.ones_like(measured))

    shares = fit(seconds)
    fitted = columns @ shares
    freedom = len(counts) - int((shares > 0).sum())
    misfit = math.sqrt(float(np.sum((fitted / seconds - 1) ** 2)) / freedom) if freedom > 0 else 0.0
    spreads = np.array([(errors or {}).get(count, 0.0) for count in counts])
    noise = np.sqrt(spreads**2 + max(misfit, _BETWEEN_RUNS) ** 2)
    random = np.random.default_rng(_SEED)
    draws = [fit(fitted * np.exp(noise * random.standard_normal(len(counts)))) for _ in range(DRAWS)]
    notes = (
        f"Fitted to an epoch's seconds on {', '.join(map(str, counts))} workers ({mode}): "
        f"compute {shares[0]:.4g} s, {sent} {shares[1]:.4g} s, fixed {shares[2]:.4g} s.",
        f"Error bars: {100 * max(misfit, _BETWEEN_RUNS):.1f} % from run to run"
        + (" (assumed: the fit leaves no larger residual)." if misfit <= _BETWEEN_RUNS else " (the fit's residuals)."),
    )
    models = tuple(_epoch_model(draw, mode) for draw in draws if draw[0] > 0)
    if shares[0] <= 0:
        raise ValueError(
            f"{source}: epochs don't get shorter as a training's do (fitted compute is 0), so nothing can "
            "be predicted from them; compare the runs' settings"
        )
    return Fitted(best=_epoch_model(shares, mode), draws=models, notes=notes)


def _epoch_columns(counts: np.ndarray, mode: Mode) -> np.ndarray:
    """(counts, 3) factors of compute, communication and the rest for each number of workers."""
    hops = 2 * (counts - 1)
    return np.stack([1 / counts, hops / counts**2 if mode == "weak" else hops, np.ones_like(counts)], axis=1)


def _epoch_model(shares: np.ndarray, mode: Mode) -> ScalingModel:
    compute, sent, rest = (float(value) for value in shares)
    weak = mode == "weak"
    link = Link(name="as logged", latency_s=0.0 if weak else sent, bytes_per_s=1.0)
    # Communication hidden by the backward pass isn't visible in epochs: the rest is exposed, in one piece.
    size = sent if weak else 1e-9
    training = Training(compute_s=compute, gradient_bytes=size, overlap=0.0, bucket_bytes=math.inf, checkpoint_s=rest)
    return ScalingModel(training=training, network=Network(between=link))


def resample(training: Training, network: Network, *, errors: Mapping[str, float], notes: Sequence[str] = ()) -> Fitted:
    """A measured training on a measured or named network, with draws of the uncertain parameters.

    errors: field of Training to its relative standard deviation. The links bring their own.
    """
    random = np.random.default_rng(_SEED)

    def factor(error: float) -> float:
        # With mean 1 and never below 0; the same stream of draws whatever the errors are.
        sigma = math.sqrt(math.log1p(error**2))
        return math.exp(sigma * random.standard_normal() - sigma**2 / 2)

    draws = []
    for _ in range(DRAWS):
        factors = {name: factor(error) for name, error in sorted(errors.items())}
        varied = _bounded(training, {name: getattr(training, name) * by for name, by in factors.items()})
        draws.append(ScalingModel(training=varied, network=_drawn(network, factor)))
    return Fitted(best=ScalingModel(training=training, network=network), draws=tuple(draws), notes=tuple(notes))


def _bounded(training: Training, values: dict[str, float]) -> Training:
    most = {"overlap": 1.0, "backward_share": 0.9, "fixed_s": values.get("compute_s", training.compute_s)}
    return replace(training, **{name: min(value, most.get(name, math.inf)) for name, value in values.items()})


def _drawn(network: Network, factor: Callable[[float], float]) -> Network:
    def link(nominal: Link) -> Link:
        return replace(
            nominal,
            latency_s=nominal.latency_s * factor(nominal.latency_error),
            bytes_per_s=nominal.bytes_per_s * factor(nominal.bandwidth_error),
        )

    return replace(network, between=link(network.between), inside=link(network.inside) if network.inside else None)
