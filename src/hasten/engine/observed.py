"""Records of a running training: metrics.jsonl, trackers, and the monitor's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from hasten.engine.components import LoopComponents
from hasten.observe.monitor import Monitor
from hasten.observe.rundir import METRICS_JSONL, append_jsonl
from hasten.observe.trackers import Tracking


class Observed:
    """Context around the training loop. The loop calls `record`; monitor and trackers run in their own threads."""

    def __init__(
        self, out: Path, parts: LoopComponents, *, steps: Callable[[], int], time_s: Callable[[], float], first: int
    ) -> None:
        observe = parts.observe
        self.path = out / METRICS_JSONL
        self.tracking = Tracking(
            observe.trackers,
            out,
            project=observe.project,
            run_name=out.resolve().name,
            config=parts.settings,
            first=first,
        )
        self.monitor = None
        if observe.monitor_every > 0:
            self.monitor = Monitor(
                out,
                every=observe.monitor_every,
                steps=steps,
                offset_s=time_s,
                gpus=_gpus(parts),
                send=self.tracking.log,
            )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.tracking)
            if self.monitor is not None:
                stack.enter_context(self.monitor)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl and send it to the trackers. Raises OSError where it can't be written."""
        append_jsonl(self.path, dict(line))
        self.tracking.log(line)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Pass the content of summary.json to the trackers, before they are closed."""
        self.tracking.summary(summary)


def _gpus(parts: LoopComponents) -> list[str] | tuple[()] | None:
    """The UUID of the training GPU; on a CPU None, which takes any GPU, if train.device is auto, else none."""
    device = parts.step.device
    if device.type == "cuda":
        # Not by number: CUDA and the driver's library may number GPUs differently.
        return [f"GPU-{torch.cuda.get_device_properties(device).uuid}"]
    return None if parts.train.device == "auto" else ()
