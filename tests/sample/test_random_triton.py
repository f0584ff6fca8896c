"""Triton's random numbers, in Triton's interpreter, against torch's.

The interpreter is chosen when Triton is imported: `TRITON_INTERPRET=1 pytest tests/sample/test_random_triton.py`.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.sample import random

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")

WORD = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=5), WORD, st.integers(1, 1100))
def test_words_and_numbers_of_a_key(words: list[tuple[int, int]], stream: int, count: int) -> None:
    from hasten.sample import random_triton

    key, salt = torch.tensor(words), random.salt_of(stream)
    assert torch.equal(random_triton.words(key, salt, count), random.random_words(key, stream, count))
    result = random_triton.uniforms(key, salt, -0.3, 1.1 - -0.3, count)
    assert torch.equal(result, random.uniform_in(key, stream, -0.3, 1.1, count))
    assert torch.equal(random_triton.uniforms(key, salt, 0.0, 1.0, count), random.uniform(key, stream, count))
    # Of one word both are within rounding of sine and logarithm.
    wanted = random.normal(key, stream, count)
    torch.testing.assert_close(random_triton.normals(key, salt, count), wanted, rtol=1e-4, atol=1e-5)
    for times in (1, 7):
        assert torch.equal(
            random_triton.salted_keys(key, salt, stream, times), random.salted_keys(key, salt, stream, times)
        )
    assert torch.equal(random_triton.hashed(key), random.hash32(key))


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=200))
@settings(max_examples=40, deadline=None)
def test_keys_of_samples(seed: int, samples: list[int]) -> None:
    from hasten.sample import random_triton

    given_seed, sample = torch.tensor(seed), torch.tensor(samples)
    assert torch.equal(random_triton.sample_keys(given_seed, sample), random.sample_key(given_seed, sample))
