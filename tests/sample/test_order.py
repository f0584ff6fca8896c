from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hasten.sample.order import case_order, cases_of
from tests.augment import reference
from tests.augment.stores import random_store, segment_of


@given(
    seed=st.integers(0, 2**40),
    num_cases=st.integers(1, 12),
    batch_size=st.integers(1, 30),
    first=st.integers(0, 10**12),
)
def test_each_sample_gets_the_case_of_the_reference(seed: int, num_cases: int, batch_size: int, first: int) -> None:
    result = cases_of(torch.tensor(seed), torch.arange(first, first + batch_size), num_cases)
    assert result.tolist() == [reference.case_of(seed, first + b, num_cases) for b in range(batch_size)]


@given(num_cases=st.integers(1, 40), batch_size=st.integers(1, 50))
def test_every_epoch_visits_every_case_once(num_cases: int, batch_size: int) -> None:
    steps = -(-4 * num_cases // batch_size)
    seed = torch.tensor(3)
    batches = [torch.arange(step * batch_size, (step + 1) * batch_size) for step in range(steps)]
    visited = torch.cat([cases_of(seed, batch, num_cases) for batch in batches])
    for epoch in range(4):
        assert sorted(visited[epoch * num_cases : (epoch + 1) * num_cases].tolist()) == list(range(num_cases))


def test_epochs_and_seeds_differ() -> None:
    epochs = torch.arange(6)
    orders = torch.cat([case_order(torch.tensor(seed), epochs, 20) for seed in (0, 1, 2)])
    assert len({tuple(order) for order in orders.tolist()}) == 18


def test_every_place_of_an_epoch_is_equally_likely_to_hold_a_case() -> None:
    orders = case_order(torch.tensor(1), torch.arange(10_000), 5)
    for case in range(5):
        counts = torch.bincount((orders == case).to(torch.int64).argmax(1), minlength=5)
        assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_all_orders_of_three_cases_are_equally_likely() -> None:
    orders = case_order(torch.tensor(2), torch.arange(12_000), 3)
    counts = torch.unique(orders @ torch.tensor([9, 3, 1]), return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_only_training_cases_are_read() -> None:
    store = random_store([(4, 4, 4)] * 5, num_classes=2)
    for case in range(5):
        store.values["image"][case * 64 : (case + 1) * 64] = case + 1
    segment = segment_of(store, (3, 3, 3), batch_size=4, train_cases=(4, 1, 2))
    seen = {value for batch in segment.batches(0, 3) for value in batch["image"].unique().tolist()}
    assert seen == {2.0, 3.0, 5.0}
