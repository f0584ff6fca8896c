"""Train lines of metrics.jsonl: losses since the last line, learning rate and throughput."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class TrainLog:
    """Keeps losses on the device until a line is written, the only time at which the host reads them."""

    def __init__(
        self,
        record: Callable[[dict[str, Any]], None] | None,
        waited: Callable[[], float],
        samples: Callable[[int, int], int],
        *,
        first: int,
        shared: Callable[[Tensor], Tensor] = lambda losses: losses,
    ) -> None:
        """record: receives each line; None on a rank that writes none. shared: the mean over the ranks."""
        self.record, self.waited, self.samples, self.shared = record, waited, samples, shared
        self.losses: list[Tensor] = []
        self._logged = first
        self._mark = (time.perf_counter(), 0.0)

    def begin(self) -> None:
        """The clock of the first line starts."""
        self._mark = (time.perf_counter(), self.waited())

    def pause(self, seconds: float) -> None:
        """Exclude the time of other work from the next line's throughput."""
        self._mark = (self._mark[0] + seconds, self._mark[1])

    def pending(self) -> Tensor:
        """(n,) losses after the last line, so that a resumed run's next line is the same."""
        if not self.losses:
            return torch.zeros(0)
        losses = self.shared(torch.stack(self.losses).float())
        self.losses = list(losses.unbind(0))
        return losses.cpu()

    def write(self, step: int, *, rate: float, time_s: float, skipped: int) -> dict[str, float]:
        """Write the line of 1-based `step` and return it. Its loss is of the finite steps, nan if there are none."""
        losses = self.shared(torch.stack(self.losses).float()) if self.losses else torch.zeros(0)
        finite = losses.isfinite()
        count_finite = int(finite.sum())
        loss = float(torch.where(finite, losses, 0).sum()) / count_finite if count_finite else math.nan
        # Throughput of this process alone: the losses of a resumed run begin with those of the process before it.
        count, self._logged = self.samples(self._logged, step), step
        self.losses.clear()
        now, waited = time.perf_counter(), self.waited()
        elapsed = now - self._mark[0]
        line = {
            "step": step,
            "time_s": time_s,
            "loss": loss,
            "lr": rate,
            "samples_per_s": count / elapsed if elapsed > 0 else 0.0,
            "wait_share": (waited - self._mark[1]) / elapsed if elapsed > 0 else 0.0,
        }
        self._mark = (now, waited)
        extra = {"skipped": skipped} if skipped else {}
        if math.isfinite(loss) and self.record is not None:
            self.record({"kind": "train", **line, **extra})
        return line
