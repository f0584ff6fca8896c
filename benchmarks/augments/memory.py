"""How much memory an operation takes beside what it returns, as torch's own allocator counts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that is held at a time during `work`, its result included. What was held before does not count."""
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = work()
    assert kept is not None
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
