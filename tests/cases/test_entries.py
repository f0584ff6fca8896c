"""What the readers of case lists share."""

from __future__ import annotations

import gc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases.entries import batched, pause_garbage_collection


@given(count=st.integers(0, 5000), num_threads=st.integers(1, 64))
def test_every_item_is_in_one_batch_and_every_thread_has_some(count: int, num_threads: int) -> None:
    batches = batched(range(count), num_threads)
    assert list(chain.from_iterable(batches)) == list(range(count))
    assert len(batches) >= min(count, num_threads)
    assert all(0 < len(batch) <= 256 for batch in batches)


@pause_garbage_collection()
def failing() -> None:
    assert not gc.isenabled()
    raise ValueError("inside")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="inside"):
            failing()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
