"""The main thread's wall time by part, each moment counted once."""

from __future__ import annotations

import time


class Timeline:
    """A stack of open spans: a moment belongs to the innermost one, or to `over` while that is set."""

    def __init__(self) -> None:
        self.stack = ["overhead"]
        self.over = ""
        self.parts: dict[str, float] = {}
        self.at = time.perf_counter()

    def mark(self, label: str = "") -> None:
        """The time since the last mark is the innermost span's, or `label`'s."""
        now = time.perf_counter()
        label = self.over or label or self.stack[-1]
        self.parts[label] = self.parts.get(label, 0.0) + now - self.at
        self.at = now

    def push(self, label: str) -> None:
        self.mark()
        self.stack.append(label)

    def pop(self) -> None:
        self.mark()
        if len(self.stack) > 1:
            self.stack.pop()

    def relabel(self, label: str) -> None:
        """What follows, until a span opens or the innermost one closes, is `label`."""
        self.mark()
        self.stack[-1] = label

    def cut(self) -> dict[str, float]:
        """Seconds by part since the last cut. Spans that were left open by an error are closed."""
        self.mark()
        del self.stack[1:]
        self.stack[0] = "overhead"
        parts, self.parts = self.parts, {}
        return parts
