"""Timing of the parts of a Trainer's steps, by wrapping its profiler."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MAX_RECENT_STEPS = 2000
"""Number of last steps that are kept for the analysis."""
WATCH_EVERY = 32
"""On a GPU, which runs asynchronously, the device is synchronized after each part of every such step."""

_PARTS = {
    "train_dataloader_next": "wait",
    "batch_to_device": "host_to_device",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "save_checkpoint": "checkpoint",
}
"""Suffixes of a Trainer's profiler actions, and the corresponding parts of `hasten.study.split`."""


@dataclass(slots=True)
class Steps:
    """Measured times: each moment belongs to the innermost open part, or to `over` if that is set."""

    wait_for_device: Callable[[], Any] | None = None
    """On a GPU."""
    over: str = ""
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds of each part since the first step."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT_STEPS))
    count: int = 0
    saves: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints: the number of steps before each, and its seconds."""
    is_watched: bool = False
    _open: list[str] = field(default_factory=list)
    _parts: dict[str, float] = field(default_factory=dict)
    _at: float = 0.0
    _saving: float = 0.0

    def mark(self) -> None:
        """Add the time since the last mark to the current part."""
        if self.is_watched and self.wait_for_device is not None:
            self.wait_for_device()
        now = time.perf_counter()
        part = self.over or (self._open[-1] if self._open else "overhead")
        self._parts[part] = self._parts.get(part, 0.0) + now - self._at
        self._at = now

    def enter(self, part: str) -> None:
        self.mark()
        self._open.append(part)
        self._saving = self._at

    def leave(self) -> None:
        self.mark()
        if self._open and self._open.pop() == "checkpoint":
            self.saves.append({"step": self.count, "seconds": self._at - self._saving})

    def waited(self) -> float:
        """Seconds that the current step has waited for its batch."""
        return self._parts.get("wait", 0.0)

    def cover(self, part: str) -> None:
        """Attribute all time to this part, until called with ""."""
        self.mark()
        self.over = part

    def begin(self) -> None:
        """Start timing; earlier time belongs to no step."""
        self._open, self._parts, self._at = [], {}, time.perf_counter()

    def end(self) -> None:
        """End a step, which includes the wait for its batch and the time since the step before."""
        parts = self.close()
        self.recent.append({"seconds": sum(parts.values()), "parts": parts, "synced": self.is_watched})
        self.count += 1
        self.is_watched = self.wait_for_device is not None and self.count % WATCH_EVERY == WATCH_EVERY - 1

    def close(self) -> dict[str, float]:
        """Seconds by part since the last step ended, which count in the totals from now on."""
        self.mark()
        self._open.clear()
        parts, self._parts = self._parts, {}
        for part, seconds in parts.items():
            self.totals[part] = self.totals.get(part, 0.0) + seconds
        return parts


class Listening:
    """Wraps the Trainer's own profiler and reports the actions that are parts of a step to `steps`."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self.inner, self.steps = inner, steps
        self._known: dict[str, str] = {}

    def start(self, action: str) -> None:
        part = self._known.get(action)
        if part is None:
            part = self._known[action] = part_of(action)
        if part:
            self.steps.enter(part)
        self.inner.start(action)

    def stop(self, action: str) -> None:
        self.inner.stop(action)
        if self._known.get(action):
            self.steps.leave()

    @contextmanager
    def profile(self, action: str) -> Generator[str, None, None]:
        try:
            self.start(action)
            yield action
        finally:
            self.stop(action)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def part_of(action: str) -> str:
    """The part that an action is, such as "forward" for "[Strategy]DDPStrategy.training_step"; "" for none."""
    owner, _, name = action.rpartition(".")
    if name in ("training_step", "backward", "batch_to_device") and not owner.startswith("[Strategy]"):
        return ""
    if name == "optimizer_step" and owner.startswith(("[Callback]", "[Strategy]")):
        return ""
    return _PARTS.get(name, "")
