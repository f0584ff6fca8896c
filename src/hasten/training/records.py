"""Records of a running training: metrics.jsonl and its train lines, trackers, the monitor's files, one log per rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.devices import uuids
from hasten.distribute.world import World
from hasten.observe.clock import Spent
from hasten.observe.monitor import Monitor
from hasten.observe.rundir import METRICS_JSONL, RANKS, append_jsonl
from hasten.observe.trackers import Tracking
from hasten.training.components import LoopComponents


class Records:
    """Writes the loop's lines to metrics.jsonl and the trackers. Monitor and trackers run in their own threads.

    Every rank has a monitor, and rank 0 alone has trackers.
    """

    def __init__(
        self,
        out: Path,
        components: LoopComponents,
        *,
        steps: Callable[[], int],
        time_s: Callable[[], float],
        first: int,
    ) -> None:
        """steps, time_s: of the run so far; first: steps of the processes before this one."""
        observe = components.observe
        self.path = out / METRICS_JSONL
        run_name, config = out.resolve().name, components.settings
        world = components.step.strategy.world
        trackers = observe.trackers if world.first else ()
        self.tracking = Tracking(trackers, out, run_name=run_name, config=config, first=first)
        self.monitor, device = None, components.step.device
        if observe.monitor_every > 0:
            self.monitor = Monitor(
                out,
                every=observe.monitor_every,
                steps=steps,
                age_s=time_s,
                rank=world.rank,
                world_size=world.size,
                gpus=uuids(device),
                send=self.tracking.log,
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the trackers and the monitor inside the block."""
        with self.tracking, self.monitor or nullcontext():
            yield

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl and send it to the trackers. Raises OSError where it can't be written."""
        append_jsonl(self.path, dict(line))
        self.tracking.log(line)


def record_of_rank(out: Path, world: World, line: Mapping[str, Any]) -> None:
    """Append a line of this rank, with its number and host, to ranks/rank-<r>.jsonl of the run's folder."""
    path = out / RANKS / f"rank-{world.rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    append_jsonl(path, {"rank": world.rank, "host": world.host, **line})


class TrainLog:
    """Keeps losses on the device until a line is written, the only time at which the host reads them."""

    def __init__(
        self,
        record: Callable[[dict[str, Any]], None] | None,
        spent: Callable[[], Spent],
        *,
        shared: Callable[[Tensor], Tensor] = lambda losses: losses,
    ) -> None:
        """record: receives each line; None on a rank that writes none. spent: of this process so far.

        shared: the mean over the ranks.
        """
        self.record, self.spent, self.shared = record, spent, shared
        self.losses: list[Tensor] = []
        self._logged = Spent()

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
        self.losses.clear()
        # After the losses were read, as a device may still have been at work on the steps.
        now = self.spent()
        since, self._logged = now - self._logged, now
        line = {
            "step": step,
            "time_s": time_s,
            "loss": loss,
            "lr": rate,
            "samples_per_s": since.samples_per_s,
            "wait_share": since.wait_share,
        }
        extra = {"skipped": skipped} if skipped else {}
        if math.isfinite(loss) and self.record is not None:
            self.record({"kind": "train", **line, **extra})
        return line
