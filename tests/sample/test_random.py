from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hasten.sample.random import below, hash32, normal, random_words, sample_key, uniform, words_at
from tests.augment import reference

ENOUGH = 0.001
"""Least p-value at the fixed seeds below."""


HASHES = [0, 2261973619, 229111015, 707447538, 2578835075]
KEYS = [[2644902529, 3118555156], [2543851819, 1854069661], [3516226678, 1594111416]]
WORDS = [[884574650, 2502087026, 3855926658], [3651284449, 3929269650, 24627662]]
NORMALS = [0.3111557, 2.0093956, -0.7914995]


def keys(seed: int, count: int) -> torch.Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def test_the_stream_never_changes() -> None:
    """Pinned by value: a change here changes every run that a user ever resumes or compares."""
    words = torch.tensor([0, 1, 2, 0xDEADBEEF, 0xFFFFFFFF])
    assert hash32(words).tolist() == HASHES
    assert sample_key(torch.tensor(2**40 + 7), torch.tensor([0, 1, 2**33 + 5])).tolist() == KEYS
    assert random_words(keys(7, 2), 0x12, 3).tolist() == WORDS
    assert uniform(keys(7, 1), 0x12, 2)[0].tolist() == [word // 256 / 2**24 for word in WORDS[0][:2]]
    np.testing.assert_allclose(normal(keys(7, 1), 0x39, 3)[0].numpy(), NORMALS, rtol=1e-5)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**12), st.integers(0, 2**32 - 1))
def test_tensors_and_python_integers_agree(seed: int, sample: int, stream: int, counter: int) -> None:
    key = sample_key(torch.tensor(seed), torch.tensor([sample]))
    assert tuple(key[0].tolist()) == reference.sample_key(seed, sample)
    word = words_at(key, stream, torch.tensor([counter]))
    assert word.item() == reference.word_at(reference.sample_key(seed, sample), stream, counter)
    assert 0 <= word.item() < 2**32


def test_hash32_is_one_to_one_and_flips_half_of_the_bits() -> None:
    words = torch.from_numpy(np.random.default_rng(0).choice(2**32, 20_000).astype(np.int64)).unique()
    hashed = hash32(words)
    assert len(hashed.unique()) == len(words)
    for bit in range(32):
        changed = hash32(words ^ (1 << bit)) ^ hashed
        flipped = torch.stack([(changed >> place) & 1 for place in range(32)]).double().mean(1)
        assert (flipped - 0.5).abs().max() < 0.025


def test_uniform_is_uniform() -> None:
    for values in (uniform(keys(1, 1), 0x77, 100_000), uniform(keys(2, 100_000), 0x77, 1)):
        assert values.dtype == torch.float32
        assert values.min() >= 0
        assert values.max() < 1
        assert stats.kstest(values.numpy().ravel(), "uniform").pvalue > ENOUGH


def test_normal_is_standard_normal() -> None:
    values = normal(keys(4, 4), 0x39, 50_000).double().numpy()
    assert stats.kstest(values.ravel(), "norm").pvalue > ENOUGH
    assert abs(values.std() - 1) < 0.005
    assert abs(stats.skew(values.ravel())) < 0.02
    assert abs(stats.kurtosis(values.ravel())) < 0.04
    assert np.abs(values).max() < 4.9


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 1000, 2**31])
def test_below_stays_below_and_is_even(bound: int) -> None:
    words = random_words(keys(5, 1), 0x12, 40_000)[0]
    drawn = below(words, torch.tensor(bound))
    assert drawn.min() >= 0
    assert drawn.max() < bound
    edge = below(torch.tensor([0, 0xFFFFFFFF]), torch.tensor(bound))
    assert edge.tolist() == [0, bound - 1]
    counts = np.bincount((drawn * min(bound, 1000) // bound).numpy(), minlength=min(bound, 1000))
    assert stats.chisquare(counts).pvalue > ENOUGH or bound == 1


def test_streams_samples_and_counters_are_unrelated() -> None:
    count = 100_000
    key = keys(6, count + 1)
    streams = [0x11, 0x12, 0x21, 0x22, 0x23, 0x24, 0x25, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39]
    columns = [uniform(key, stream, 1)[:-1, 0] for stream in streams]
    columns += [uniform(key, 0x12, 1)[1:, 0], uniform(key, 0x12, 2)[:-1, 1]]
    columns += [uniform(keys(7, count), 0x12, 1)[:, 0]]
    table = torch.stack(columns).double()
    related = torch.corrcoef(table) - torch.eye(len(table))
    assert related.abs().max() < 0.02
    squares = torch.corrcoef((table - 0.5) ** 2) - torch.eye(len(table))
    assert squares.abs().max() < 0.02
