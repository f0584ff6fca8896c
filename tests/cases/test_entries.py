"""What the readers of case lists share."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hasten.cases.entries import batched


@given(count=st.integers(0, 5000), num_threads=st.integers(1, 64))
def test_every_item_is_in_one_batch_and_every_thread_has_some(count: int, num_threads: int) -> None:
    batches = batched(range(count), num_threads)
    assert list(chain.from_iterable(batches)) == list(range(count))
    assert len(batches) >= min(count, num_threads)
    assert all(0 < len(batch) <= 256 for batch in batches)
