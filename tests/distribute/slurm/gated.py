"""`python gated.py REACHED STEP -m hasten train ...`: a run waits in that step for a signal, on its first start."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from hasten.training.step import TrainStep
from hasten.training.stop import StopRequest

_PATIENCE_S = 500


def hold(reached: Path, step: int) -> None:
    """In the step of 0-based number `step`: make the file `reached`, and go on once this rank has heard a signal."""
    heard: list[Any] = []
    ask, call = StopRequest.ask, TrainStep.__call__

    def asked(self: StopRequest, *arguments: Any) -> None:
        heard.append(arguments)
        ask(self, *arguments)

    def held(self: TrainStep, image: Any, label: Any, index: int) -> Any:
        if index == step:
            reached.touch()
            end = time.monotonic() + _PATIENCE_S
            while not heard and time.monotonic() < end:
                time.sleep(0.05)
        return call(self, image, label, index)

    StopRequest.ask, TrainStep.__call__ = asked, held  # type: ignore[method-assign]


if __name__ == "__main__":
    # The ranks wait for rank 0 in their next collective.
    if not int(os.environ.get("SLURM_RESTART_COUNT", "0")) and os.environ.get("SLURM_PROCID") == "0":
        hold(Path(sys.argv[1]), int(sys.argv[2]))
    assert sys.argv[3] == "-m"
    module = sys.argv[4]
    sys.argv = [module, *sys.argv[5:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
