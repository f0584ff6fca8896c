"""The model of a step: its limits, and what must grow or shrink with what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.study.scale.predict.collective import all_reduce_s, ring_s, tree_s
from hasten.study.scale.predict.links import LINKS, Link, Network
from hasten.study.scale.predict.model import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    SPREAD,
    TOO_FEW,
    Training,
    expected_maximum,
    exposed_s,
    predict,
)

SLOW = Link(name="slow", latency_s=1e-4, bytes_per_s=1e8)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    share = st.floats(0, 1)
    compute = draw(st.floats(1e-3, 10))
    return Training(
        compute_s=compute,
        gradient_bytes=draw(st.floats(0, 1e9)),
        fixed_s=draw(share) * compute,
        spread=draw(st.floats(0, 0.5)),
        imbalance=draw(share),
        backward_share=draw(st.floats(0.01, 1)),
        bucket_bytes=draw(st.floats(1e5, 1e8)),
        overlap=draw(share),
        data_s=draw(st.floats(0, 20)),
        steps=draw(st.none() | st.floats(0.1, 1e4)),
        validation_s=draw(st.floats(0, 100)),
        checkpoint_s=draw(st.floats(0, 10)),
        startup_s=draw(st.floats(0, 100)),
        epochs=draw(st.none() | st.floats(1, 100)),
    )


@st.composite
def networks(draw: st.DrawFn) -> Network:
    links = st.sampled_from(list(LINKS.values()))
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    return Network(between=draw(links), inside=draw(links), per_node=per_node, adapters=draw(st.integers(1, 8)))


MODES = st.sampled_from(["weak", "strong"])
COUNTS = st.integers(1, 2048)


@given(trainings(), COUNTS, networks(), MODES)
def test_an_efficiency_is_a_share_and_what_is_lost_is_the_rest(training, workers, network, mode) -> None:
    point = predict(training, workers, network, mode)
    assert 0 < point.efficiency <= 1 + 1e-9
    assert point.efficiency + sum(point.losses.values()) == pytest.approx(1)
    assert point.step_s > 0
    assert 0 <= point.communication_share <= 1


@given(trainings(), networks(), MODES)
def test_one_worker_is_the_measure_of_itself(training, network, mode) -> None:
    point = predict(training, 1, network, mode)
    assert point.efficiency == 1
    assert point.communication_share == 0
    assert point.limit == COMPUTE
    assert point.step_s == pytest.approx(max(training.compute_s, training.data_s))


@given(trainings(), COUNTS, networks(), MODES, st.floats(1, 100))
def test_a_faster_network_is_never_worse(training, workers, network, mode, factor) -> None:
    faster = replace(network, between=replace(network.between, bytes_per_s=factor * network.between.bytes_per_s))
    sooner = replace(network, between=replace(network.between, latency_s=network.between.latency_s / factor))
    result = predict(training, workers, network, mode).efficiency
    assert predict(training, workers, faster, mode).efficiency >= result - 1e-12
    assert predict(training, workers, sooner, mode).efficiency >= result - 1e-12


@given(trainings(), COUNTS, networks(), MODES)
def test_more_overlap_is_never_worse(training, workers, network, mode) -> None:
    most = predict(replace(training, overlap=1.0), workers, network, mode).efficiency
    assert most >= predict(training, workers, network, mode).efficiency - 1e-12


def test_the_last_bucket_is_never_hidden() -> None:
    training = Training(compute_s=1.0, gradient_bytes=8e6, bucket_bytes=2e6, backward_share=0.5)
    network = Network(between=SLOW)
    each = ring_s(2e6, 2, SLOW)
    assert exposed_s(training, 2, network, 0.5) == pytest.approx(each)
    # Where communication takes longer than the backward pass, all but the wait for the first bucket is left.
    assert exposed_s(training, 2, network, 0.02) == pytest.approx(0.02 / 4 + 4 * each - 0.02)
    assert exposed_s(replace(training, overlap=0.0), 2, network, 0.5) == pytest.approx(4 * each)


@given(st.lists(st.floats(1e-4, 1), min_size=1, max_size=20), st.floats(1e-4, 1))
def test_buckets_follow_one_another_as_a_simulation_has_it(sleeps, each) -> None:
    """Equal buckets in closed form against the queue itself."""
    count, backward = len(sleeps), sum(sleeps)
    free = 0.0
    for number in range(count):
        free = max(free, (number + 1) * backward / count) + each
    link = Link(name="", latency_s=each / 2, bytes_per_s=1e18)
    training = Training(compute_s=backward, gradient_bytes=float(count), bucket_bytes=1.0)
    assert exposed_s(training, 2, Network(between=link), backward) == pytest.approx(free - backward)


def test_small_messages_go_by_trees_and_large_ones_around_rings() -> None:
    link = LINKS["ib100"]
    assert tree_s(1e3, 256, link) < ring_s(1e3, 256, link)
    assert ring_s(1e10, 256, link) < tree_s(1e10, 256, link)
    for size in (1e3, 1e10):
        best = min(ring_s(size, 256, link), tree_s(size, 256, link))
        assert all_reduce_s(size, 256, Network(between=link)) == best
        rings = replace(link, trees=False)
        assert all_reduce_s(size, 256, Network(between=rings)) == ring_s(size, 256, link)
    assert ring_s(1e6, 1, link) == tree_s(1e6, 1, link) == 0


def test_nodes_send_less_between_them_than_their_workers_would() -> None:
    nodes = Network(between=LINKS["ib200"], inside=LINKS["nvlink3"], per_node=8)
    apart = Network(between=LINKS["ib200"])
    assert all_reduce_s(1e8, 8, nodes) == ring_s(1e8, 8, LINKS["nvlink3"])
    assert all_reduce_s(1e8, 8, nodes) < all_reduce_s(1e8, 8, apart) / 5
    more = replace(nodes, adapters=8)
    assert all_reduce_s(1e8, 64, more) < all_reduce_s(1e8, 64, nodes)


@pytest.mark.parametrize("workers", [2, 8, 64, 1024])
def test_the_slowest_of_many_draws_is_as_slow_as_drawing_them_shows(workers: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((4000, workers)).max(axis=1).mean()
    assert expected_maximum(workers) == pytest.approx(drawn, abs=0.03)


def test_what_limits_is_named() -> None:
    base = Training(compute_s=0.1, gradient_bytes=4e6, steps=1000.0)
    fast, slow = Network(between=LINKS["nvlink4"]), Network(between=LINKS["eth1"])
    assert predict(base, 64, fast).limit == COMPUTE
    assert predict(replace(base, gradient_bytes=4e8), 64, slow).limit == COMMUNICATION
    assert predict(replace(base, spread=0.2), 64, fast).limit == SPREAD
    assert predict(replace(base, steps=4.0), 64, fast).limit == TOO_FEW
    # Slow data are the same wait on any number of workers, so nothing is lost by them.
    starved = predict(replace(base, data_s=0.5), 64, fast)
    assert starved.limit == COMPUTE
    assert starved.step_s == pytest.approx(0.5)
    assert starved.losses[DATA] == pytest.approx(0, abs=1e-3)


def test_strong_scaling_ends_at_what_a_smaller_share_does_not_shorten() -> None:
    training = Training(compute_s=1.0, gradient_bytes=0.0, fixed_s=0.1)
    network = Network(between=SLOW)
    assert predict(training, 4, network, "weak").efficiency == 1
    assert predict(training, 4, network, "strong").efficiency == pytest.approx(0.25 / (0.25 + 0.1 * 0.75))
    assert predict(training, 1000, network, "strong").step_s == pytest.approx(0.1, rel=0.02)
