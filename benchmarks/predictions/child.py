"""One arm in a process of its own: seconds and peak memory of its work, without imports and the network's loading."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engines.sliding import status
from benchmarks.harness import ROOT, in_child


def measured(arm: str, job: dict[str, Any], nnunet: Path | None) -> dict[str, float]:
    """`seconds`, and `mib` of resident memory at the peak, children's too, above what was held before.

    arm: hasten, monai or nnunet_processes.
    """
    Path(job["out"]).mkdir(parents=True, exist_ok=True)
    package = arm.partition("_")[0]
    env = {name: str(ROOT) for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}
    if package == "nnunet":
        env["PYTHONPATH"] = os.pathsep.join([str(nnunet), os.environ.get("PYTHONPATH", "")])
    figures: dict[str, float] = in_child("benchmarks.predictions.child", package, json.dumps(job), env=env)
    return figures


def main(arm: str, job: dict[str, Any]) -> dict[str, float]:
    work = importlib.import_module(f"benchmarks.predictions.{arm}_arm").end(job)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    with tree_peak() as peak:
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "mib": (max(status("VmHWM"), *peak) - before) / 2**10}


@contextmanager
def tree_peak() -> Iterator[list[int]]:
    """Receives, as the only element, the peak KiB of this process and its children, looked at five times a second.

    Of each child what it shares with others does not count.
    """
    peak, process, done = [0], psutil.Process(), threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            children = process.children(recursive=True)
            if not children:
                continue
            size = process.memory_info().rss
            for child in children:
                with suppress(psutil.Error):
                    memory = child.memory_info()
                    size += memory.rss - memory.shared
            peak[0] = max(peak[0], size // 2**10)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    yield peak
    done.set()
    watcher.join()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
