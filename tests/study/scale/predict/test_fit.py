"""Parameters from measurements: recovered where they are known, and trusted as far as the noise allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from hasten.study.scale.predict.fit import Fitted, alpha_beta, fit_epochs, nonnegative, predictions, resample
from hasten.study.scale.predict.links import LINKS, Link, Network
from hasten.study.scale.predict.model import Mode, Training, ring_s

SIZES = [2**power for power in range(10, 27, 2)]


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 5))
def test_least_squares_without_negative_parts_are_scipy_s(seed: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    matrix, wanted = random.standard_normal((rows, columns)), random.standard_normal(rows)
    ours = nonnegative(matrix, wanted)
    assert (ours >= 0).all()
    rest = np.linalg.norm(matrix @ ours - wanted)
    assert rest == pytest.approx(nnls(matrix, wanted)[1], abs=1e-7)


@settings(max_examples=30)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11), st.integers(2, 64))
def test_a_link_is_recovered_from_its_all_reduces(latency: float, rate: float, workers: int) -> None:
    true = Link(name="", latency_s=latency, bytes_per_s=rate)
    result = alpha_beta([(size, ring_s(size, workers, true)) for size in SIZES], workers, name="it")
    for size in SIZES:
        assert ring_s(size, workers, result) == pytest.approx(ring_s(size, workers, true), rel=1e-3)


def test_one_disturbed_all_reduce_changes_little_and_noise_is_told() -> None:
    true, random = LINKS["eth1"], np.random.default_rng(1)
    exact = [(size, ring_s(size, 4, true)) for size in SIZES]
    disturbed = [(size, seconds * (20 if place == 4 else 1)) for place, (size, seconds) in enumerate(exact)]
    result = alpha_beta(disturbed, 4, name="it")
    assert result.bytes_per_s == pytest.approx(true.bytes_per_s, rel=0.05)
    assert result.latency_s == pytest.approx(true.latency_s, rel=0.05)
    noisy = alpha_beta([(size, s * math.exp(0.3 * random.standard_normal())) for size, s in exact], 4, name="it")
    assert noisy.bandwidth_error > alpha_beta(exact, 4, name="it").bandwidth_error
    with pytest.raises(ValueError, match="too few for a latency and a rate"):
        alpha_beta(exact[:2], 4, name="it")


def _epoch(workers: int, mode: Mode, compute: float, sent: float, rest: float) -> float:
    """An epoch by the ring's formula: its bytes in a weak epoch's 1/W of the steps, its messages in a strong one's."""
    hops = 2 * (workers - 1)
    return compute / workers + (sent * hops / workers**2 if mode == "weak" else sent * hops) + rest


@settings(max_examples=10)
@given(st.floats(10, 500), st.floats(0, 100), st.floats(0, 20), st.sampled_from(["weak", "strong"]))
def test_an_epoch_s_shares_are_recovered_from_counts(compute: float, sent: float, rest: float, mode: Mode) -> None:
    counts = (1, 2, 4, 8, 16)
    shares = (compute, sent if mode == "weak" else sent / 100, rest)
    fitted = fit_epochs({workers: _epoch(workers, mode, *shares) for workers in counts}, mode=mode)
    training, link = fitted.best.training, fitted.best.network.between
    assert training.compute_s == pytest.approx(shares[0], rel=1e-4, abs=1e-3)
    result = training.gradient_bytes if mode == "weak" else link.latency_s
    assert result == pytest.approx(shares[1], rel=1e-3, abs=1e-3)
    assert training.checkpoint_s == pytest.approx(shares[2], rel=1e-3, abs=1e-3)
    for one in predictions(fitted, (1, 2, 3, 64), mode):
        truth = _epoch(one.point.workers, mode, *shares)
        if mode == "weak":
            assert one.point.epoch_s == pytest.approx(truth, rel=1e-3)
        else:
            # Over many workers a tree sends fewer messages than the fitted ring would.
            assert one.point.epoch_s <= truth * (1 + 1e-6)


def _width(fitted: Fitted, workers: int) -> float:
    one = predictions(fitted, [workers], "weak")[0]
    return (one.epoch_s[1] - one.epoch_s[0]) / one.point.epoch_s


def test_error_bars_widen_with_noise_and_hold_the_point() -> None:
    counts = (1, 2, 4, 8)
    clean = {workers: _epoch(workers, "weak", 200, 20, 2) for workers in counts}
    quiet = fit_epochs(clean, mode="weak")
    loud = fit_epochs(clean, mode="weak", errors=dict.fromkeys(counts, 0.2))
    assert _width(loud, 64) > 1.5 * _width(quiet, 64) > 0
    training = Training(compute_s=0.1, gradient_bytes=2e8, spread=0.05)
    network = Network(between=LINKS["eth10"])
    sure = resample(training, network, errors={"compute_s": 0.01})
    unsure = resample(training, network, errors={"compute_s": 0.5, "spread": 0.5})
    for one, other in zip(predictions(sure, [8, 512], "weak"), predictions(unsure, [8, 512], "weak"), strict=True):
        assert one.efficiency[0] <= one.point.efficiency <= one.efficiency[1]
        assert other.step_s[1] - other.step_s[0] > one.step_s[1] - one.step_s[0] > 0
    assert sure == resample(training, network, errors={"compute_s": 0.01})


def test_epochs_that_tell_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the logs: epochs on 1, 2 workers .*too few.*such as 1, 2, 4"):
        fit_epochs({1: 100.0, 2: 50.0}, mode="weak")
    with pytest.raises(ValueError, match="epochs don't get shorter"):
        fit_epochs({1: 1.0, 2: 2.0, 4: 8.0}, mode="weak")
