"""One training of a scaling study, from any source."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """One training on `world` workers (processes, with one GPU each if there are GPUs)."""

    strategy: str
    world: int
    seed: int
    source: str
    """The file or folder it was read from, relative to the study's."""
    epochs: Mapping[int, float]
    """0-based epoch to its seconds of training."""
    total_s: float | None
    """Wall time of the whole training; it includes the start-up in runs of Hasten."""
    losses: tuple[tuple[float, float, float], ...]
    """(epochs done, seconds since the start, loss) in order."""
    metric_name: str
    metric: float | None
    """Quality of the result, higher is better."""
    scores: tuple[tuple[float, float], ...] = ()
    """(seconds since the start, metric) of each validation."""
    rate: float | None = None
    """Highest learning rate."""
    cases: int | None = None
    """Samples of an epoch."""
    mode: str = ""
    """`weak`: the batch grows with the workers; `strong`: it stays the same; empty if unknown."""
    machine: Mapping[str, object] | None = None
    """Machine of a Hasten run: cores, threads of a worker, device, and settings that each run chooses by measuring."""

    def epoch_s(self, epoch: int | None) -> float | None:
        """Seconds of that 0-based epoch; None: the median of all but the first, which warms up."""
        if epoch is not None:
            return self.epochs.get(epoch)
        later = [seconds for index, seconds in self.epochs.items() if index > 0]
        return statistics.median(later or self.epochs.values()) if self.epochs else None

    def time_to(self, level: float) -> float | None:
        """Seconds since the start until a validation reached `level`; None if none did."""
        return next((seconds for seconds, metric in self.scores if metric >= level), None)
