"""Progress of a run: one live line on a terminal, a plain line at intervals elsewhere."""

from __future__ import annotations

import math
import os
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any, TextIO

from hasten.observe.values import duration

LIVE_EVERY = 0.2
"""Seconds between redraws on a terminal."""
SHOWN = {"dice": "Dice", "iou": "IoU", "auc": "AUC"}
"""Displayed names of the metrics in metrics.jsonl."""
PLAIN_EVERY = 5.0
"""Seconds between lines in a log file."""


class Progress:
    """Shows steps, loss, the metric, speed and time left on `stream` (standard error by default)."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._live: Any = None
        self._is_terminal = self._stream.isatty()
        self._every = LIVE_EVERY if self._is_terminal else PLAIN_EVERY
        self._begin(0, None, "")
        self._running = False

    def _begin(self, total_steps: int, target: float | None, metric: str) -> None:
        self._total, self._target, self._metric = total_steps, target, SHOWN.get(metric, metric)
        self._began = self._clock()
        self._due = self._began + self._every
        self._ends = math.inf  # when the time limit is reached
        # Step and time of the first update: the speed leaves out what came before it (compiling, the first read).
        self._first: tuple[int, float] | None = None
        self._last: dict[str, float] = {}  # of each figure
        self._running = True

    def start(self, total_steps: int, target: float | None = None, metric: str = "dice") -> None:
        """Begin a run of `total_steps` that may stop once the metric, named as in metrics.jsonl, reaches `target`."""
        self.stop()
        self._begin(total_steps, target, metric)
        if self._is_terminal:
            # Imported here, so that quiet runs and all other commands do without it.
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False, transient=True)
            self._live.start()

    def update(
        self,
        step: int,
        loss: float | None = None,
        score: float | None = None,
        best: float | None = None,
        samples_per_s: float | None = None,
        wait_share: float | None = None,
    ) -> None:
        """Report that `step` steps are done; None keeps what was last given. A `score` (a validation) is shown at once,
        with the `best` so far.

        Between redraws this stores a few values and compares a clock, so it may be called on every step.
        """
        now = self._clock()
        if self._first is None:
            self._first = (step, now)
        given = {"loss": loss, "score": score, "best": best, "samples_per_s": samples_per_s, "wait_share": wait_share}
        self._last |= {name: value for name, value in given.items() if value is not None}
        if self._running and (score is not None or now >= self._due):
            self._draw(step, now, is_validation=score is not None)
            self._due = now + self._every

    def expect(self, total_steps: int, limit_s: float) -> None:
        """The run is now expected to end after `total_steps` steps, and must end in `limit_s` seconds."""
        self._total, self._ends = total_steps, self._clock() + limit_s

    def tell(self, text: str) -> None:
        """Print what the run is or does, above the live line."""
        self._print(wrapped(text, self._width()))

    def stop(self, message: str = "") -> None:
        """End the display and print `message`; safe to call twice, or before `start`."""
        self._running = False
        if self._live is not None:
            self._live.stop()
            self._live = None
        if message:
            print(message, file=self._stream, flush=True)

    def _draw(self, step: int, now: float, *, is_validation: bool) -> None:
        # No part is broken: its words hang together.
        text = "  ".join(part.replace(" ", "\xa0") for part in self._parts(step, now))
        text = wrapped(text, self._width()).replace("\xa0", " ")
        if is_validation or self._live is None:  # stays, so that the course of the score can be read afterwards
            self._print(text)
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _print(self, text: str) -> None:
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            self._live.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _width(self) -> int | None:
        """Columns of the terminal; None for a file, which takes lines of any length."""
        return terminal_width(self._stream) if self._is_terminal else None

    def _parts(self, step: int, now: float) -> list[str]:
        """The parts of the line, most important first."""
        parts = [f"step {step}/{self._total} ({100 * step / max(1, self._total):.0f}%)", duration(now - self._began)]
        first_step, first_time = self._first or (step, now)
        if first_step < step < self._total:
            remaining_s = min((now - first_time) / (step - first_step) * (self._total - step), self._ends - now)
            parts[-1] += f", at most {duration(remaining_s)} left"
        last = self._last
        if "score" in last:
            goal = f", target {self._target:.4f}" if self._target is not None else ""
            parts.append(f"{self._metric} {last['score']:.4f} (best {last['best']:.4f}{goal})")
        forms = {"loss": "loss {:.4f}", "samples_per_s": "{:.1f} samples/s", "wait_share": "waiting for data {:.1%}"}
        parts += [form.format(last[name]) for name, form in forms.items() if name in last]
        return parts


def wrapped(text: str, width: int | None) -> str:
    """Each line of `text` in as many lines as `width` columns ask for, broken between words; None leaves it."""
    if width is None:
        return text
    return "\n".join(
        textwrap.fill(
            line,
            max(1, width - 1),
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that `stream` writes to; 80 where that is not known."""
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or 80
    except (OSError, ValueError):
        return 80
