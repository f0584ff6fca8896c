"""Settings of all tests."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

from hasten.observe.cores import usable_cores  # before torch, whose threads must not spin where tests run side by side

# A number that is set stays, whatever else runs here: tests compare trainings bit for bit.
os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))

# The same examples every time, so that a change is judged by itself; `make test-all` looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("explore", settings.get_profile("default"), deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_collection_finish() -> None:
    """Keep the suite's own objects, nearly a million, out of every collection: each training makes some, of 0.6 s."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What is frozen at the end Triton 3.9 lists as leaked, in a hundred lines after the summary."""
    gc.unfreeze()
